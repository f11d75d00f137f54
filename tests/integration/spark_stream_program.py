"""A Spark driver with two streams of one topic into files, by each of the two sources; made to be killed.

    python spark_stream_program.py run    FOLDER BOOTSTRAP OBJECT_STORE TOPIC      until it is killed
    python spark_stream_program.py finish FOLDER BOOTSTRAP OBJECT_STORE TOPIC      until everything is read

Prints "running" when both streams run. `finish` writes what is in the files to FOLDER/<source>.json: partition, offset
and value of each row. The folders of files and checkpoints are below FOLDER too.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import spark_session

SOURCES = ("kafka", "kbroker")
ROWS_PER_BATCH = "150"  # small, so that a kill hits many different points


def main(mode: str, folder: Path, bootstrap: str, object_store: str, topic: str) -> None:
    session = spark_session.start(folder)
    options = {
        "kafka": {"kafka.bootstrap.servers": bootstrap, "kafka.fetch.max.wait.ms": "10"},
        "kbroker": {"object.store": object_store},
    }
    queries = [start(session, source, folder / source, options[source] | {"subscribe": topic}) for source in SOURCES]
    print("running", flush=True)
    if mode == "run":
        for query in queries:
            query.awaitTermination()
        return
    for source, query in zip(SOURCES, queries, strict=True):
        query.processAllAvailable()
        query.stop()
        rows = session.read.parquet(str(folder / source / "files")).collect()
        found = sorted((row.partition, row.offset, bytes(row.value).decode()) for row in rows)
        (folder / f"{source}.json").write_text(json.dumps(found))
    session.stop()


def start(session: Any, source: str, folder: Path, options: dict[str, str]) -> Any:
    """The stream of one source, from its checkpoint if it has one.

    Spark refuses a checkpoint whose folder `offsets` has a file but no batch: what a kill amid the first write leaves.
    Nothing was read by then, so the stream begins anew.
    """
    checkpoint = folder / "checkpoint"
    if not any(entry.name.isdecimal() for entry in checkpoint.glob("offsets/*")):
        shutil.rmtree(checkpoint, ignore_errors=True)
    table = (
        session.readStream.format(source)
        .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger=ROWS_PER_BATCH)
        .load()
    )
    return (
        table.select("partition", "offset", "value")
        .writeStream.format("parquet")
        .option("path", str(folder / "files"))
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
