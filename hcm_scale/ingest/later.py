"""Columns of a table that its first file has not: they are not read, and told of."""

from hcm_scale.ingest.batches import TableFiles, schema_of


def later_columns(table: TableFiles) -> dict[str, tuple[str, str]]:
    """Type and file of each column that a later file alone has, by name; of several files the first."""
    found: dict[str, tuple[str, str]] = {}
    for path in table.paths[1:]:
        for field in schema_of(path):
            if field.name not in table.schema.names:
                found.setdefault(field.name, (str(field.type), table.name_of(path)))
    return found
