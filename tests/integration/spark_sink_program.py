"""A Spark driver with a stream from files into a topic by transactions; made to be killed.

    python spark_sink_program.py run    FOLDER BOOTSTRAP TOPIC     until it is killed
    python spark_sink_program.py finish FOLDER BOOTSTRAP TOPIC     until everything is written

Prints "running" when the stream runs. It reads lines of FOLDER/lines, a few files in each micro-batch; the checkpoint
is below FOLDER too.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import spark_session

FILES_PER_BATCH = "2"  # so that a kill hits many different points


def main(mode: str, folder: Path, bootstrap: str, topic: str) -> None:
    session = spark_session.start(folder)
    checkpoint = folder / "checkpoint"
    # Spark refuses a checkpoint whose folder `offsets` has a file but no batch: what a kill amid its write leaves.
    if not any(entry.name.isdecimal() for entry in checkpoint.glob("offsets/*")):
        shutil.rmtree(checkpoint, ignore_errors=True)
    query = (
        session.readStream.format("text")
        .option("maxFilesPerTrigger", FILES_PER_BATCH)
        .load(str(folder / "lines"))
        .selectExpr("value key", "value")
        .writeStream.format("kbroker")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("kbroker.transactional", "true")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    print("running", flush=True)
    if mode == "run":
        query.awaitTermination()
        return
    query.processAllAvailable()
    query.stop()
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
