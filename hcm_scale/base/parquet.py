"""Parquet files of one row group each, joined into one file with the bytes that a single writer would give.

pyarrow encodes the row groups of a file one after the other. Files of one group can be encoded in threads instead, and
joined here:

    PAR1 | pages of the group | footer | length of the footer, 4 bytes | PAR1

Pages hold no positions, so those of all groups follow each other unchanged. The footers differ in their number of rows
and their list of one group: rows are added up, and the lists are concatenated, with every position in the file moved by
as much as its pages. All else in a footer is copied as it is. Page indexes are refused: they hold positions of their
own, outside the footer. Memory: one group at a time.

A footer is a struct in Thrift's compact protocol: fields and a zero byte. A field is a byte, whose high half is the
difference of its number from the last field's and whose low half is the type of its value, and the value. Integers are
written 7 bits a byte, lowest first, the top bit telling whether more follow; signed ones are zigzag encoded: 0, -1, 1,
-2 are 0, 1, 2, 3. A text begins with its length, a list with a byte that has its size in the high half (15: the size
follows) and the type of its entries in the low half.
"""

from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

_MAGIC = b"PAR1"
_TAIL_BYTES = 8  # the footer's length and the magic
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _TEXT, _LIST, _SET, _MAP, _STRUCT, _UUID = range(1, 14)
_FIXED_BYTES = {_TRUE: 1, _FALSE: 1, _BYTE: 1, _DOUBLE: 8, _UUID: 16}

# Fields of the footer, each by the numbers of the fields that lead to it, through lists too.
_NUM_ROWS, _GROUPS, _ORDINAL = (3,), (4,), (4, 7)
_GROUP_AT, _COLUMN_AT = (4, 5), (4, 1, 2)
_DATA_AT, _INDEX_PAGE_AT, _DICTIONARY_AT, _BLOOM_FILTER_AT = (4, 1, 3, 9), (4, 1, 3, 10), (4, 1, 3, 11), (4, 1, 3, 14)
_OFFSETS = {_GROUP_AT, _COLUMN_AT, _DATA_AT, _INDEX_PAGE_AT, _DICTIONARY_AT, _BLOOM_FILTER_AT}
_PAGE_INDEXES = {(4, 1, 4), (4, 1, 6)}
_LOOKED_FOR = {_NUM_ROWS, _GROUPS, _ORDINAL} | _OFFSETS | _PAGE_INDEXES


class Field(NamedTuple):
    """A field of a footer: where its bytes are, and its integer value; of a list, the number of entries."""

    path: tuple[int, ...]
    start: int
    stop: int
    value: int


class Group(NamedTuple):
    """A file of one row group, split into its pages and its footer."""

    pages: memoryview
    footer: bytes
    fields: list[Field]

    @staticmethod
    def of(file: memoryview) -> "Group":
        """The parts of the bytes of a whole file."""
        end = len(file) - _TAIL_BYTES
        begin = end - int.from_bytes(file[end : end + 4], "little")
        group = Group(file[len(_MAGIC) : begin], bytes(file[begin:end]), [])
        _walk(group.footer, 0, _STRUCT, (), group.fields)
        if any(field.path in _PAGE_INDEXES for field in group.fields):
            raise ValueError("files with page indexes cannot be joined: write them with write_page_index=False")
        if group.field(_GROUPS).value != 1:
            raise ValueError(f"only files of one row group are joined: this has {group.field(_GROUPS).value}")
        return group

    def field(self, path: tuple[int, ...]) -> Field:
        return next(field for field in self.fields if field.path == path)

    def moved(self, by: int, ordinal: int) -> bytes:
        """The footer's entry for the group once it is number `ordinal` of a file, `by` bytes further back."""
        whole, pieces = self.field(_GROUPS), []
        at = whole.start + 1  # behind the byte that says that one group follows
        for path, start, stop, value in self.fields:
            if path == _ORDINAL or (path in _OFFSETS and value):  # an offset of 0 is none
                pieces += [self.footer[at:start], _bytes_of(2 * (ordinal if path == _ORDINAL else value + by))]
                at = stop
        return b"".join([*pieces, self.footer[at : whole.stop]])


def join(stream: BinaryIO, groups: Iterable[Group]) -> None:
    """Writes one file of at least one group, all of the same columns."""
    shared, listing, num_rows, at = None, [], 0, stream.write(_MAGIC)
    for ordinal, group in enumerate(groups):
        data, rows, listed = group.footer, group.field(_NUM_ROWS), group.field(_GROUPS)
        around = data[: rows.start], data[rows.stop : listed.start], data[listed.stop :]
        if around != (shared or around):
            raise ValueError(f"row group {ordinal} has other columns or metadata than those before it")
        shared, num_rows = around, num_rows + rows.value
        listing.append(group.moved(at - len(_MAGIC), ordinal))
        at += stream.write(group.pages)
    assert shared is not None, "a file has at least one row group"
    count = len(listing)
    size = bytes([count << 4 | _STRUCT]) if count < 15 else bytes([0xF0 | _STRUCT]) + _bytes_of(count)
    footer = b"".join([shared[0], _bytes_of(2 * num_rows), shared[1], size, *listing, shared[2]])
    stream.write(footer + len(footer).to_bytes(4, "little") + _MAGIC)


def _walk(data: bytes, at: int, kind: int, path: tuple[int, ...], fields: list[Field]) -> int:
    """The end of the value that begins at `at`; it and those in it are added to `fields` if they are looked for."""
    start, value = at, 0
    if kind in (_I16, _I32, _I64):
        value, at = _signed(data, at)
    elif kind == _TEXT:
        length, at = _unsigned(data, at)
        at += length
    elif kind in (_LIST, _SET):
        value, entry, at = data[at] >> 4, data[at] & 15, at + 1
        if value == 15:
            value, at = _unsigned(data, at)
        for _ in range(value):
            at = _walk(data, at, entry, path, fields)
    elif kind == _MAP:  # its size; unless that is 0, a byte with the kinds of keys and values, and these in turn
        size, at = _unsigned(data, at)
        kinds, at = (data[at], at + 1) if size else (0, at)
        for entry in [kinds >> 4, kinds & 15] * size:
            at = _walk(data, at, entry, path, fields)
    elif kind == _STRUCT:
        return _walk_fields(data, at, path, fields)
    else:
        at += _FIXED_BYTES[kind]
    if path in _LOOKED_FOR:
        fields.append(Field(path, start, at, value))
    return at


def _walk_fields(data: bytes, at: int, path: tuple[int, ...], fields: list[Field]) -> int:
    number = 0
    while head := data[at]:
        step, kind, at = head >> 4, head & 15, at + 1
        if step:
            number += step
        else:  # too far for half a byte: the number itself follows
            number, at = _signed(data, at)
        if kind not in (_TRUE, _FALSE):  # these have no other bytes
            at = _walk(data, at, kind, (*path, number), fields)
    return at + 1


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 128:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
    return value | data[at] << shift, at + 1


def _signed(data: bytes, at: int) -> tuple[int, int]:
    folded, at = _unsigned(data, at)
    return folded >> 1 ^ -(folded & 1), at


def _bytes_of(value: int) -> bytes:
    """A non-negative integer as it is written; twice a number is its zigzag encoding."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
