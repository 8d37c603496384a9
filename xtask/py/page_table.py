"""Reads tables of page frames as people will: the queries of a document in DuckDB, and what Polars makes of the files.

page_table.py DOCUMENT, run where frames.parquet, frames.csv (the same frames), later.parquet (in the order of frames) and summary.parquet are.
"""

import re
import sys

import duckdb
import polars

QUERY = re.compile(r"^```sql\n(.*?)^```", re.M | re.S)
SIGNED = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "VARCHAR", "TIMESTAMP WITH TIME ZONE"}


def one(sql):
    return duckdb.sql(sql).fetchall()[0][0]


def main(document):
    queries = QUERY.findall(open(document, encoding="utf-8").read())
    assert len(queries) == 10, len(queries)
    for query in queries:
        print(len(duckdb.sql(query).fetchall()), "rows:", query.split("\n")[0])

    described = duckdb.sql("DESCRIBE FROM 'frames.parquet'").fetchall()
    types = {name: kind for name, kind, *_ in described}
    assert set(types.values()) <= SIGNED, types

    # The same frames in CSV, which cannot tell a text without characters from none.
    duckdb.sql(f"CREATE VIEW csv AS FROM read_csv('frames.csv', columns = {types})")
    columns = ", ".join(f"nullif({name}, '') AS {name}" if kind == "VARCHAR" else f'"{name}"' for name, kind in types.items())
    for a, b in [("'frames.parquet'", "csv"), ("csv", "'frames.parquet'")]:
        differ = one(f"SELECT count(*) FROM (SELECT {columns} FROM {a} EXCEPT ALL SELECT {columns} FROM {b})")
        assert differ == 0, f"{differ} rows of {a} are not in {b}"
    assert one("SELECT count(*) FROM 'frames.parquet'") == one("SELECT sum(pages) FROM 'summary.parquet'")

    # By frame, row groups follow each other, and each says from where to where it goes.
    groups = duckdb.sql(
        "SELECT stats_min_value::BIGINT, stats_max_value::BIGINT FROM parquet_metadata('later.parquet') "
        "WHERE path_in_schema = 'pfn' ORDER BY row_group_id"
    ).fetchall()
    assert all(a[1] < b[0] for a, b in zip(groups, groups[1:])), groups
    assert one("SELECT count(*) FROM parquet_metadata('frames.parquet') WHERE path_in_schema = 'class' AND stats_min_value IS NULL") == 0

    frames = polars.read_parquet("frames.parquet")
    assert frames.height == one("SELECT count(*) FROM 'frames.parquet'")
    assert not any(str(kind).startswith("UInt") for kind in frames.dtypes), frames.schema
    by_class = dict(frames.group_by("class").len().iter_rows())
    assert by_class == dict(duckdb.sql("SELECT class, count(*) FROM 'frames.parquet' GROUP BY class").fetchall())
    last = frames["pfn"].max()
    some = polars.scan_parquet("later.parquet").filter(polars.col("pfn") > last - 100).collect()
    assert 0 < some.height <= 100, some.height


main(*sys.argv[1:])
