# Image of the report on audit logs. The image is separate because the report needs Java and Spark, which the sidecar
# does not need.
#
#   docker build -f deploy/docker/report.Dockerfile -t oxproxy-report:1.0.0 .
ARG BUILD_BASE=python:3.13-slim-bookworm
ARG BASE=python:3.13-slim-bookworm

FROM ${BUILD_BASE} AS build
# As in Dockerfile: a directory with wheels, and 1 if only these wheels may be used.
ARG PIP_FIND_LINKS=
ARG PIP_NO_INDEX=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_CONSTRAINT=/src/deploy/local/requirements.txt
WORKDIR /src
COPY . .
# PySpark is distributed as a source package that requires no compiler.
RUN python3 -m venv /build \
    && /build/bin/python -m pip install hatchling \
    && /build/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /build/dist . \
    && python3 -m venv --without-pip /opt/oxproxy \
    && wheel=$(ls /build/dist/*.whl) \
    && /build/bin/python -m pip --python /opt/oxproxy/bin/python install "${wheel}[report]"

FROM ${BASE}
LABEL org.opencontainers.image.title="oxproxy-report" \
      org.opencontainers.image.description="Report on the audit logs of oxproxy, by Apache Spark" \
      org.opencontainers.image.licenses="Apache-2.0"
# No Java version is pinned, so that security updates are installed when the image is rebuilt. Hadoop requires a user
# with a name.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin oxproxy \
    && install -d -o 10001 -g 10001 -m 0750 /var/lib/oxproxy \
    && find / -xdev -type f -perm /6000 -exec chmod a-s {} +
ENV PATH=/opt/oxproxy/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp SPARK_LOCAL_DIRS=/tmp
COPY --from=build /opt/oxproxy /opt/oxproxy
WORKDIR /var/lib/oxproxy
USER 10001:10001
# The container runs once; there is no service to check.
HEALTHCHECK NONE
ENTRYPOINT ["oxproxy", "report"]
CMD ["--help"]
