"""Limits of tables' files: how large a file is, which files are small, and how much is joined at a time.

The files that are joined at a time have two limits: their size, and the size of their rows in memory, which may be a
thousand times larger.
"""

FILE_ROWS = 2_000_000

FILE_BYTES = 128 << 20
"""The approximate maximum size of a file's rows in memory."""

SMALL_FILE_BYTES = 8 << 20
"""The remaining rows of a file below this size, in bytes, are joined with the new rows."""

REWRITTEN_BESIDE_VECTORS_BYTES = 256 << 10
"""In a table with deletion vectors, files below this size are written again rather than get a vector."""

MAX_JOINED_BYTES = 64 << 20

MAX_JOINED_MEMORY_BYTES = 2 * FILE_BYTES
"""The approximate maximum size in memory of the rows of files that compaction joins at a time. It joins no file whose
rows have half of `FILE_BYTES` in memory."""

MANY_FILES = 32
"""Maintenance of a table with deletion vectors and more files than this joins full files: a batch that changes random
rows pays for each file."""

LARGE_FILE_BYTES = 96 << 20
"""The maximum size of the file that full files are joined to, in bytes."""

LARGE_FILE_MEMORY_BYTES = 8 * FILE_BYTES
"""The approximate maximum size of its rows in memory."""

MAX_FULL_FILES_BYTES = 1 << 30
"""Maintenance joins full files of a table up to this size, in bytes, and the rest at its next runs: the stream waits
meanwhile, and its next batch makes the key copies of the new files."""

MIN_FILES_TO_JOIN = 32
"""After a batch, small files of a table are joined if there are at least this many."""

CHECK_EVERY_COMMITS = 8
"""After a batch, the list of a table's files is checked if this many commits or new files have come."""

SIZE_CLASS_BYTES = (1 << 20, 32 << 20)
"""After a batch, files below the first size are joined with each other, and files between the two sizes too. So each
byte is rewritten at most twice."""

MAX_FOOTERS_READ = 4 * MIN_FILES_TO_JOIN
"""The maximum number of footers that are read after a batch to choose files."""

SPARSE_SHARE = 3
"""A file with more than one deleted row in this many rows is written again without them."""

COMPACTION_SHARE = 4
"""After a batch, sparse files are written again up to this many times the bytes that batches wrote to the table."""

COMPACT_BELOW_BYTES = 32 << 20
"""Maintenance joins all files of fewer bytes."""
