# All commands, with Java and Spark, in a container. From the project's folder:
#   docker build -f conf/stream.Dockerfile -t tarantool-aggregator-stream --build-arg BASE=python:3.11-slim-bookworm@sha256:<digest> .
#   docker run -v /data:/data -v /etc/aggregator:/etc/aggregator:ro tarantool-aggregator-stream run --config /etc/aggregator/deployment.yaml
# A base without a digest is refused, as in conf/Dockerfile, unless --build-arg UNPINNED=yes says that you mean it.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
ARG BASE
ARG UNPINNED=no
RUN case "${BASE}" in *@sha256:*) ;; *) [ "${UNPINNED}" = yes ] || \
    { echo "BASE=${BASE} has no digest: see conf/stream.Dockerfile" >&2; exit 1; } ;; esac
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/tarantool-aggregator
COPY requirements-run.lock ./
RUN pip install --no-cache-dir --require-hashes --requirement requirements-run.lock
COPY aggregator aggregator
COPY conf conf
COPY config config
COPY jobs jobs
COPY observe observe
COPY pipeline pipeline
COPY schemas schemas
COPY sources sources
COPY udfs udfs
COPY warehouse warehouse
COPY tests/recordings/2.6.0 tests/recordings/2.6.0
# Delta's jars and the compiled kernels are in the image, so that a start needs no network; /data is where volumes are
# mounted.
RUN python -m aggregator setup \
    && useradd --system --create-home --uid 10001 aggregator && mkdir -p /data && chown aggregator /data
USER aggregator
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "aggregator"]
CMD ["run", "--config", "/etc/aggregator/deployment.yaml"]
