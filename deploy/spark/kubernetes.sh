#!/usr/bin/env bash
# An export as a Spark application on Kubernetes, in cluster mode.
#   deploy/spark/kubernetes.sh API-SERVER IMAGE CLAIM HOST:PORT TOPIC [more arguments of the export]
# IMAGE is made of deploy/spark/Dockerfile; CLAIM is a volume claim that driver and executors can all
# write (ReadWriteMany): it is mounted at /export, and the topic is exported to /export/TOPIC.
set -euo pipefail
[ $# -ge 5 ] || { sed -n '2,6p' "$0" >&2; exit 2; }
server=$1 image=$2 claim=$3 bootstrap=$4 topic=$5
shift 5
volume=persistentVolumeClaim.export
mounts=()
for role in driver executor; do
  prefix=spark.kubernetes.$role.volumes.$volume
  mounts+=(--conf "$prefix.mount.path=/export" --conf "$prefix.options.claimName=$claim")
done
exec spark-submit --master "k8s://$server" --deploy-mode cluster --name "paceline-export-$topic" \
  --conf spark.kubernetes.container.image="$image" --conf spark.executor.instances=2 \
  --conf spark.log.level=ERROR "${mounts[@]}" \
  local:///opt/paceline/lib/python3.11/site-packages/paceline/spark/submit.py \
  --bootstrap "$bootstrap" --topic "$topic" --to "/export/$topic" "$@"
