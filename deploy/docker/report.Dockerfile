# The report on audit logs as an image of its own, since it needs Java and Spark, which the sidecar does not.
#
#   docker build -f deploy/docker/report.Dockerfile -t oxproxy-report:0.1.0 .
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY . .
RUN python3 -m venv /opt/oxproxy && /opt/oxproxy/bin/python -m pip install --constraint deploy/local/requirements.txt ".[report]"

FROM ${BASE}
LABEL org.opencontainers.image.title="oxproxy-report" \
      org.opencontainers.image.description="Report on the audit logs of oxproxy, by Apache Spark" \
      org.opencontainers.image.licenses="Apache-2.0"
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# The distribution's Java gets its security updates when the image is built anew, so no version is pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 10001 -g 10001 -m 0750 /var/lib/oxproxy
ENV PATH=/opt/oxproxy/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp SPARK_LOCAL_DIRS=/tmp
COPY --from=build /opt/oxproxy /opt/oxproxy
WORKDIR /var/lib/oxproxy
USER 10001:10001
# It runs to its end; there is nothing to watch.
HEALTHCHECK NONE
ENTRYPOINT ["oxproxy", "report"]
CMD ["--help"]
