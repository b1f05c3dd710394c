#!/usr/bin/env bash
# A standalone Spark master and two workers on this machine, and an export by them.
#   deploy/spark/standalone.sh HOST:PORT TOPIC FOLDER
# Needs PYTHON (default: python3) with paceline[spark], and Java 17 or newer.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,4p' "$0" >&2; exit 2; }
bootstrap=$1 topic=$2 to=$3
shift 3
python=${PYTHON:-python3}
export PYSPARK_PYTHON=${PYSPARK_PYTHON:-$(command -v "$python")}
spark_home=$("$python" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
submit=$("$python" -c 'import paceline.spark.submit as s; print(s.__file__)')
export SPARK_HOME=$spark_home SPARK_LOCAL_IP=${SPARK_LOCAL_IP:-127.0.0.1}
port=${SPARK_MASTER_PORT:-7077}
work=$(mktemp -d)
started=()
finish() {
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait || true
  rm -rf "$work"
}
trap finish EXIT

"$spark_home/bin/spark-class" org.apache.spark.deploy.master.Master \
  --host 127.0.0.1 --port "$port" --webui-port 0 >"$work/master.log" 2>&1 &
started+=($!)
for number in 1 2; do
  "$spark_home/bin/spark-class" org.apache.spark.deploy.worker.Worker \
    --cores 1 --memory 1g --webui-port 0 --work-dir "$work/worker-$number" \
    "spark://127.0.0.1:$port" >"$work/worker-$number.log" 2>&1 &
  started+=($!)
done
for _ in $(seq 300); do
  [ "$(grep -c 'Registering worker' "$work/master.log" 2>/dev/null || true)" = 2 ] && break
  kill -0 "${started[0]}" 2>/dev/null || { cat "$work/master.log" >&2; exit 1; }
  sleep 0.2
done
"$spark_home/bin/spark-submit" --master "spark://127.0.0.1:$port" \
  --conf spark.executor.memory=700m --conf spark.driver.memory=700m --conf spark.ui.enabled=false \
  --conf spark.ui.showConsoleProgress=false --conf spark.log.level=ERROR \
  "$submit" --bootstrap "$bootstrap" --topic "$topic" --to "$to" "$@"
