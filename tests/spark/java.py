"""`python -m tests.spark.java`: 0 if Spark's Java is there, else one sentence and 1."""

import sys

from paceline.errors import ConfigError
from paceline.spark.session import check_java

if __name__ == "__main__":
    try:
        check_java()
    except ConfigError as error:
        sys.exit(error.message)
