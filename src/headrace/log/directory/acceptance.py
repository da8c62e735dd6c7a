"""Accepts the loss of a partition's records, so that its log can be opened again.

Used by `headrace log accept-loss` while the broker is stopped. Removes only the files and rows from
which recovery knows that records are missing. All segments stay: the next start keeps the longest
valid prefix, and sets the rest aside.
"""

from headrace.env.files import Files
from headrace.log.directory import offset_files, recorded_partitions
from headrace.log.upkeep import checkpoints
from headrace.model.topics import TopicPartition


def accept_loss(files: Files, directory: str, partition: TopicPartition) -> None:
    """Durably remove the checkpoint of a partition, and its rows in the files of the directory."""
    path = f"{directory}/{partition}"
    if files.exists(path):
        files.remove(f"{path}/{checkpoints.LOG_CHECKPOINT}")
        files.sync_directory(path)
    for name in (checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS):
        rows = offset_files.read_offsets(files, directory, name)
        if partition in rows:
            kept = {each: offset for each, offset in rows.items() if each != partition}
            files.replace_file(f"{directory}/{name}", checkpoints.encode_offsets(kept))
    recorded_partitions.forget(files, directory, str(partition))
