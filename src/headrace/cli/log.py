"""`headrace log`: reads and checks the files of a broker, and accepts the loss of some."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

from headrace.cli.connection import add_json_argument, sentence
from headrace.cli.failure import OUTPUT_ERRORS, Failure
from headrace.cli.output import Progress, plural, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    summary = "print a .log, .index, .timeindex, .txnindex or .snapshot file"
    dump = actions.add_parser("dump", help=summary, description=sentence(summary))
    dump.add_argument("file", metavar="FILE", help="the file to print")
    dump.add_argument(
        "--batches",
        action="store_true",
        help="print only the batches of a .log file, not their records",
    )
    add_json_argument(dump)
    dump.set_defaults(run_action=_dump)
    summary = "verify every checksum and index, and list the files that recovery has set aside"
    check = actions.add_parser(
        "check",
        help=summary,
        description=f"{sentence(summary)} The exit code is 1 if it finds a problem, even one that "
        "the broker repairs. Indexes of the last segment are verified only if its size and theirs "
        "are those of the last checkpoint, as after a clean stop.",
    )
    check.add_argument(
        "directory", metavar="DIR", help="a partition, a data directory, or a cluster's directory"
    )
    add_json_argument(check)
    check.set_defaults(run_action=_check)
    summary = "start an offline partition without its lost records"
    accept = actions.add_parser(
        "accept-loss",
        help=summary,
        description=f"{sentence(summary)} Stop its broker first. The remaining segments are kept.",
    )
    accept.add_argument("directory", metavar="DIR", help="the partition's directory, such as d/t-0")
    accept.set_defaults(run_action=_accept_loss)


def run(args: argparse.Namespace) -> int:
    try:
        code: int = args.run_action(args)
    except OSError as error:
        if error.errno in OUTPUT_ERRORS:
            raise
        raise Failure(f"Cannot read {error.filename or 'the file'}: {error.strerror}.") from None
    return code


def _dump(args: argparse.Namespace) -> int:
    from headrace.cli.dump import dump_file

    return dump_file(args.file, batches_only=args.batches, as_json=args.json)


def _check(args: argparse.Namespace) -> int:
    from headrace.env.files import SystemFiles
    from headrace.log.recovery.check import Problem, Report, check_partition

    files = SystemFiles()
    reports: dict[str, Report] = {}
    partitions = _partition_directories(args.directory)
    _report_running_brokers({os.path.dirname(path) for path in partitions.values()})
    with Progress() as progress:
        for name, path in partitions.items():
            if os.path.isdir(path):
                reports[name] = check_partition(files, path, _progress(progress, name))
            else:
                what = "the directory is missing: the log stays offline, or is copied again"
                reports[name] = Report(problems=[Problem(path, -1, what)])
    if args.json:
        print_json({name: _as_json(report) for name, report in reports.items()})
    else:
        for name, report in reports.items():
            _print_report(name, report)
    return 1 if any(report.problems or report.lost_files for report in reports.values()) else 0


def _report_running_brokers(data_directories: set[str]) -> None:
    from headrace.env.files import lock_holder
    from headrace.log.upkeep import checkpoints

    for directory in sorted(data_directories):
        pid = lock_holder(f"{directory}/{checkpoints.LOCK}")
        if pid is not None:
            print(
                f"headrace: the broker of {directory} is running: pid {pid}. The check covers what "
                "is in the files now; a file that changes during the check can look damaged.",
                file=sys.stderr,
            )


def _accept_loss(args: argparse.Namespace) -> int:
    from headrace.env.files import DirectoryInUse, SystemFiles
    from headrace.log.directory.acceptance import accept_loss
    from headrace.log.directory.partition_directories import parse_partition
    from headrace.log.upkeep import checkpoints

    data, name = os.path.split(os.path.abspath(args.directory))
    partition = parse_partition(name)
    if partition is None:
        raise Failure(f"{name} is not a partition. Pass a directory such as {data}/mill-0.")
    files = SystemFiles()
    if not files.exists(f"{data}/{checkpoints.META_PROPERTIES}"):
        raise Failure(f"{data} is not a data directory: it has no meta.properties.")
    try:
        lock = files.lock(f"{data}/{checkpoints.LOCK}", f"{os.getpid()}\n")
    except DirectoryInUse as error:
        raise Failure(f"{data} is in use by process {error.holder}. Stop that broker.") from None
    try:
        accept_loss(files, data, partition)
    finally:
        files.close(lock)
    print(f"{partition}: loss accepted. Start the broker: it keeps the remaining records.")
    return 0


def _progress(progress: Progress, name: str) -> Callable[[int], None]:
    return lambda size: progress.show(f"{name}: {size / 1e6:.0f} MB checked")


def _partition_directories(directory: str) -> dict[str, str]:
    """Partition directories by name: one, those of a broker, or those of a cluster's brokers."""
    from headrace.log.upkeep import checkpoints

    directory = os.path.abspath(directory)
    names = os.listdir(directory)
    if _has_partition_files(directory):
        return {os.path.basename(directory): directory}
    brokers = [
        name
        for name in sorted(names)
        if os.path.exists(f"{directory}/{name}/{checkpoints.META_PROPERTIES}")
    ]
    if brokers:
        found = {
            f"{broker}/{name}": path
            for broker in brokers
            for name, path in _of_broker(f"{directory}/{broker}").items()
        }
    else:
        found = _of_broker(directory)
        if checkpoints.META_PROPERTIES not in names:
            # Other programs have directories with such names.
            found = {name: path for name, path in found.items() if _has_partition_files(path)}
    if not found:
        raise Failure(f"{directory} contains no partitions.")
    return found


def _has_partition_files(directory: str) -> bool:
    from headrace.log.upkeep import checkpoints

    files = (checkpoints.PARTITION_METADATA, checkpoints.LOG_CHECKPOINT)
    return any(
        name in files or (name.endswith(".log") and name[:-4].isdigit())
        for name in os.listdir(directory)
    )


def _of_broker(directory: str) -> dict[str, str]:
    """The partitions in a data directory, and recorded ones that are missing there."""
    from headrace.env.files import SystemFiles
    from headrace.log.directory import recorded_partitions
    from headrace.log.directory.partition_directories import parse_partition

    with os.scandir(directory) as entries:
        names = {entry.name for entry in entries if entry.is_dir()}
    names.update(recorded_partitions.missing(SystemFiles(), directory))
    partitions = sorted(filter(None, map(parse_partition, names)))
    return {str(partition): f"{directory}/{partition}" for partition in partitions}


def _as_json(report: Any) -> dict[str, Any]:
    return {
        "segments": report.segments,
        "batches": report.batches,
        "records": report.records,
        "size_bytes": report.size_bytes,
        "first_offset": report.log_start_offset,
        "log_end_offset": report.log_end_offset,
        "problems": [problem._asdict() for problem in report.problems],
        "lost": [{"file": info.name, "size_bytes": info.size} for info in report.lost_files],
    }


def _print_report(name: str, report: Any) -> None:
    verdict = "ok" if not report.problems else plural(len(report.problems), "problem")
    print(
        f"{name}: {verdict}; {plural(report.segments, 'segment')}, "
        f"{plural(report.batches, 'batch')}, {plural(report.records, 'record')}, "
        f"{plural(report.size_bytes, 'byte')}"
    )
    for problem in report.problems:
        print(f"  {problem}")
    for info in report.lost_files:
        print(f"  {info.name}: set aside by recovery, {plural(info.size, 'byte')}")
