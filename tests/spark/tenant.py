"""A Spark program of one tenant: copies its topic `orders` to `copies`, and prints its plans.

    python tests/spark/tenant.py ENDPOINTS FOLDER SECRET

Its access key comes from the environment; SECRET ("KEY.SECRET_KEY") is the same as a token. FOLDER
gets Spark's events, of which its web pages are made.
"""

import sys

from paceline.spark.session import open_session


def main(endpoints: str, folder: str, token: str) -> None:
    spark = open_session(
        "local[2]",
        name="tenant",
        settings={
            "spark.driver.memory": "1g",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file://{folder}",
        },
    )
    spark.sparkContext.setLogLevel("INFO")
    try:
        read = {"endpoints": endpoints}
        orders = spark.read.format("paceline").options(topic="orders", **read).load()
        orders.explain(extended=True)
        writer = orders.select("body", "key").write.format("paceline").mode("append")
        writer.option("endpoints", endpoints).option("topic", "copies").save()
        read |= {"topicsPattern": "[^%]*", "token": token}
        by_token = spark.read.format("paceline").options(**read).load()
        by_token.explain(extended=True)
        names = sorted(row.topic for row in by_token.select("topic").distinct().collect())
        sys.stdout.write(f"\ntopics: {','.join(names)}\n")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
