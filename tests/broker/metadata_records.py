"""Records of the metadata cache, made field by field."""

import struct

from klamm.protocol.fast.metadata_records import PartitionMetadata


def packed(partition: PartitionMetadata) -> bytes:
    """A partition as it stands in a Metadata answer without an error."""
    index, leader, leader_epoch, *arrays = partition
    record = struct.pack(">hiii", 0, index, leader, leader_epoch)
    for ids in arrays:
        record += struct.pack(f">B{len(ids)}i", len(ids) + 1, *ids)
    return record + b"\0"
