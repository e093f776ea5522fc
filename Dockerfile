# marl_sb3 in the versions of constraints.txt. Runs are written to /marl/runs. TORCH_INDEX is the address of PyTorch's CPU
# builds, from its page (README links to it); without it, pip takes its usual index, with builds of several GB:
#   docker build --build-arg TORCH_INDEX -t marl_sb3 .
#   docker run --rm -v "$PWD/runs:/marl/runs" --user "$(id -u)" marl_sb3 train arena
FROM python:3.12-slim-trixie

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

WORKDIR /src
COPY constraints.txt ./
ARG TORCH_INDEX=""
# The version is that of constraints.txt.
# hadolint ignore=DL3013
RUN pip install "$(grep '^torch==' constraints.txt)" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
COPY pyproject.toml README.md LICENSE ./
COPY hparams hparams
COPY marl_sb3 marl_sb3
RUN pip install -c constraints.txt '.[serve,video]'

# Compiled code is kept where any user may write, since --user may name one without a home.
ENV NUMBA_CACHE_DIR=/marl/.cache MPLCONFIGDIR=/marl/.cache
RUN useradd --uid 1000 --create-home marl && mkdir -p /marl/runs /marl/.cache && chmod 1777 /marl /marl/runs /marl/.cache
USER 1000
WORKDIR /marl
ENTRYPOINT ["marl-sb3"]
CMD ["--help"]
