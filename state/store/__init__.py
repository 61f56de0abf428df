"""A worker's keyed state: a memtable before RocksDB."""
