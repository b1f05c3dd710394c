"""A program: copy one topic to another by a streaming query until all that is there is there.

Arguments: endpoints, source topic, target topic, checkpoint folder.
"""

import sys

from paceline.spark.session import open_session


def main(endpoints: str, source: str, target: str, folder: str) -> None:
    spark = open_session("local[2]", name="copy", settings={"spark.driver.memory": "600m"})
    stream = (
        spark.readStream.format("paceline")
        .options(endpoints=endpoints, topic=source, maxRecordsPerTrigger="400")
        .load()
        .select("body", "key")
        .writeStream.format("paceline")
        .options(endpoints=endpoints, topic=target, chunkRecords="50", checkpointLocation=folder)
        .trigger(availableNow=True)
        .start()
    )
    stream.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
