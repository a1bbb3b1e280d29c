"""Asks the same questions of the recordings in an object store with ClickHouse or Spark.

fleet_judge.py FILE: FILE is JSON with engine, queries (over tables, see below), and where the store is: url, key and
secret for ClickHouse, which speaks S3, and root, the folder of the store, for Spark, whose S3 support is no part of its
package. Prints a JSON list: for each query its rows, all values as texts.
"""
import json
import sys

TABLES = ["recordings", "findings", "gpu_time", "kernels", "kernel_names"]


def clickhouse(config):
    from chdb import session

    s = session.Session()
    for table in TABLES:
        s.query(
            f"CREATE VIEW {table} AS SELECT * FROM s3('{config['url']}/table={table}/**/*.parquet', "
            f"'{config['key']}', '{config['secret']}', 'Parquet') SETTINGS use_hive_partitioning=1"
        )
    for query in config["queries"]:
        text = str(s.query(query, "JSONCompactStrings"))
        yield json.loads(text)["data"]


def spark(config):
    from pyspark.sql import SparkSession

    s = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    for table in TABLES:
        s.read.parquet(f"{config['root']}/table={table}").createOrReplaceTempView(table)
    for query in config["queries"]:
        yield [[str(v) for v in row] for row in s.sql(query).collect()]


if __name__ == "__main__":
    with open(sys.argv[1]) as f:
        config = json.load(f)
    print(json.dumps(list({"clickhouse": clickhouse, "spark": spark}[config["engine"]](config))))
