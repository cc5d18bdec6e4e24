# The two commands in a container:
#
#   docker build -t twophase .
#   docker run --rm -p 127.0.0.1:8888:8888 twophase     make lab: open the address that it prints
#   docker run --rm twophase make test
#
# Without a GPU, --build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu leaves CUDA out of the image.
# What you write stays in the container unless labs/ is a volume: -v "$PWD/labs:/home/learner/twophase/labs"

# Debian 12 has Python 3.11. Another Debian or Ubuntu will do: --build-arg BASE=ubuntu:24.04
ARG BASE=debian:bookworm-slim
FROM ${BASE}

# gcc compiles Triton's kernels for the CPU; with Python's headers, its launcher for a GPU too (docker run --gpus all).
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates gcc git libc6-dev make procps \
        python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --shell /bin/bash learner
USER learner
WORKDIR /home/learner/twophase
COPY --chown=learner:learner . .
ARG PIP_EXTRA_INDEX_URL
RUN make model

# Jupyter listens beyond the container, and nobody looks for a browser inside.
RUN mkdir -p /home/learner/.jupyter \
    && echo 'c.ServerApp.ip = "0.0.0.0"' > /home/learner/.jupyter/jupyter_server_config.py
ENV BROWSER=no
EXPOSE 8888
CMD ["make", "lab"]
