"""What to type to get the packages that an extra of this one stands for."""

from importlib.metadata import PackageNotFoundError, requires
from shlex import quote


def install_command(extra: str) -> str:
    """By the packages' own names: it works wherever this one was installed from."""
    try:
        required = requires("headrace") or []
    except PackageNotFoundError:
        required = []
    marked = [line.partition(";") for line in required]
    names = [quote(name.strip()) for name, _, mark in marked if f'"{extra}"' in mark]
    return f"pip install {' '.join(names)}" if names else f"pip install '.[{extra}]'"
