# marl_sb3 with the CPU build of PyTorch, in the versions of constraints.txt. Runs are written to /work/runs:
#   docker build -t marl_sb3 .
#   docker run --rm -v "$PWD/runs:/work/runs" --user "$(id -u)" marl_sb3 train arena
FROM python:3.12-slim-trixie

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

WORKDIR /src
COPY constraints.txt ./
RUN pip install "$(grep '^torch==' constraints.txt)" --index-url https://download.pytorch.org/whl/cpu
COPY pyproject.toml README.md LICENSE ./
COPY hparams hparams
COPY marl_sb3 marl_sb3
RUN pip install -c constraints.txt '.[serve,video]'

# Compiled code is kept where any user may write, since --user may name one without a home.
ENV NUMBA_CACHE_DIR=/work/.cache MPLCONFIGDIR=/work/.cache
RUN useradd --uid 1000 --create-home marl && mkdir -p /work/runs /work/.cache && chmod 1777 /work /work/runs /work/.cache
USER 1000
WORKDIR /work
ENTRYPOINT ["marl-sb3"]
CMD ["--help"]
