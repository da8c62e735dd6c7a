"""The proof that a data directory still has all writes of the previous broker process.

Owns the clean-shutdown marker, and decides when the marker of `incarnation` is written.

1. After a clean stop, the clean-shutdown marker is the proof. It is written last, removed before
   the first append, and valid only for the expected broker epoch (I17).
2. After a kill, the marker of `incarnation` is the proof.
3. When a log of this process fails, the process withdraws its proof: the kernel can have dropped
   pages that were not written.
"""

import json
import logging

from headrace.env.files import Files
from headrace.log.directory import incarnation
from headrace.log.directory.incarnation import Incarnation
from headrace.log.upkeep import checkpoints

_LOG = logging.getLogger(__name__)


class DataProof:
    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._marker = f"{directory}/{checkpoints.CLEAN_SHUTDOWN}"
        self.was_clean = False
        """Whether the previous process shut down cleanly."""
        self.clean_epoch = -1
        """The broker epoch in the clean-shutdown marker; -1 without a marker."""
        self.incarnation = Incarnation()
        """The proof of the marker of the last registration."""
        self._broker_epoch = -1
        """The current registration."""
        self._is_withdrawn = False

    def read(self, expected_broker_epoch: int | None) -> None:
        """Read both markers. If the expected epoch is None, any clean-shutdown marker is valid."""
        try:
            content = json.loads(self._files.read_file(self._marker))
            self.clean_epoch = int(content["brokerEpoch"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            self.was_clean = False
        else:
            self.was_clean = expected_broker_epoch in (None, self.clean_epoch)
        self.incarnation = incarnation.read(self._files, self._directory)

    @property
    def has_all_writes(self) -> bool:
        """Whether all writes of the previous process are kept, except files removed by others."""
        return self.was_clean or self.incarnation.is_cached

    @property
    def kept_epoch(self) -> int:
        """The broker epoch of which all writes are kept; -1 without a proof."""
        if self.was_clean:
            return self.clean_epoch
        return self.incarnation.broker_epoch if self.incarnation.is_cached else -1

    @property
    def last_epoch(self) -> int:
        """The last broker epoch that wrote to the directory; -1 if unknown."""
        return self.clean_epoch if self.was_clean else self.incarnation.broker_epoch

    def registered(self, broker_epoch: int) -> None:
        """Write the marker for a new registration of this process."""
        if not self._is_withdrawn:
            self._broker_epoch = broker_epoch
            incarnation.write(self._files, self._directory, broker_epoch)

    def withdraw(self) -> None:
        """A log has failed: later processes get no proof of this process's writes."""
        if not self._is_withdrawn:
            self._is_withdrawn = True
            incarnation.withdraw(self._files, self._directory, self._broker_epoch)

    def remove_clean_marker(self) -> None:
        """Before the first append: a crash must not look like a clean shutdown."""
        if self._files.exists(self._marker):
            self._files.remove(self._marker)
            self._files.sync_directory(self._directory)

    def write_clean_marker(self, broker_epoch: int) -> bool:
        """After everything else is durable. Returns whether the marker was written."""
        content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()
        try:
            self._files.replace_file(self._marker, content)
        except OSError as error:
            _LOG.warning(
                "clean-shutdown marker not written: directory=%s error=%s", self._directory, error
            )
            return False
        return True
