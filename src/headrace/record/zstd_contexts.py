"""Decompresses zstd frames with contexts of the system's libzstd that are reused.

cramjam creates a context per call. On a virtual machine, this takes 8 us: the library executes the
instruction CPUID, which a hypervisor emulates. Decompressing a batch of 17 KB takes 11 us.

This path is optional: `decompress_frame` returns None for each frame that it does not handle, valid
or not, and on systems without libzstd. cramjam then decides.

1. libzstd writes only to the output buffer, whose size it gets. It allocates no memory per frame.
2. All back-references are inside of the window that the frame states, as consumers require: the
   window is at least as large as the output.
"""

import ctypes
from typing import Final

OUTPUT_BYTES_MAX: Final = 1024 * 1024
"""The size of a reused output buffer. Pages that no batch has needed take no memory."""
_LIBRARY: Final = "libzstd.so.1"
_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_SINGLE_SEGMENT: Final = 0x20
"""A flag of the frame: its window is its complete content."""
_WINDOW_LOG_MAX: Final = 27
"""The largest window that consumers accept: 128 MiB."""


class _Context:
    """A context and its output buffer, for one thread at a time. They are never freed."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.buffer = memoryview(bytearray(OUTPUT_BYTES_MAX))
        self.output = (ctypes.c_char * OUTPUT_BYTES_MAX).from_buffer(self.buffer)
        self.state = library.ZSTD_createDCtx()
        if not self.state:
            raise MemoryError


def _load() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    library.ZSTD_createDCtx.restype = pointer
    library.ZSTD_createDCtx.argtypes = []
    library.ZSTD_findFrameCompressedSize.restype = size
    library.ZSTD_findFrameCompressedSize.argtypes = [ctypes.c_char_p, size]
    library.ZSTD_decompressDCtx.restype = size
    library.ZSTD_decompressDCtx.argtypes = [pointer, pointer, size, ctypes.c_char_p, size]
    return library


_library: Final = _load()
_contexts: Final[list[_Context]] = []
"""Unused contexts."""


def decompress_frame(data: memoryview, size_max: int) -> bytes | None:
    """The content of exactly one frame; None if this path does not handle it."""
    if _library is None or not 6 <= len(data) <= OUTPUT_BYTES_MAX:
        return None
    frame = bytes(data)
    if not frame.startswith(_MAGIC):
        return None
    if _library.ZSTD_findFrameCompressedSize(frame, len(frame)) != len(frame):
        return None
    output_max = min(size_max, OUTPUT_BYTES_MAX)
    if not frame[4] & _SINGLE_SEGMENT:
        window_log = 10 + (frame[5] >> 3)
        if window_log >= _WINDOW_LOG_MAX:
            return None
        output_max = min(output_max, 1 << window_log)
    try:
        context = _contexts.pop()
    except IndexError:
        context = _Context(_library)
    try:
        size: int = _library.ZSTD_decompressDCtx(
            context.state, context.output, output_max, frame, len(frame)
        )
        # An error code is larger than every size.
        return bytes(context.buffer[:size]) if size <= output_max else None
    finally:
        _contexts.append(context)
