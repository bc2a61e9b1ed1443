#!/bin/bash
# Starts a Spark executor in a pod: `command` of the executors' pod template (docs/examples/kubernetes). Spark's backend for Kubernetes says
# all about an executor in these variables; Spark's Python package has no program that reads them.
set -euo pipefail

home=$(dirname "$(readlink -f "$0")")/../..
jars=$(echo "$home"/.venv/lib/python3.*/site-packages/pyspark/jars)
# SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, …: one option each, in this order.
options=()
for ((number = 0; ; number++)); do
  name=SPARK_JAVA_OPT_$number
  [[ -v $name ]] || break
  options+=("${!name}")
done

exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}$jars/*" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
