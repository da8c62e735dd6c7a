"""Record batches: headers, checksums, compression, building and reading. No I/O."""
