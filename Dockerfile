# docker build -t lrp-book . && mkdir -p out && docker run --rm -v "$PWD/out:/book/_build" lrp-book
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends git make && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 reader && mkdir /book && chown reader /book
USER reader
WORKDIR /book
ENV TORCH_INDEX=https://download.pytorch.org/whl/cpu PIP_NO_CACHE_DIR=1
COPY --chown=reader requirements.txt pyproject.toml README.md LICENSE Makefile ./
COPY --chown=reader lrputils lrputils
RUN make setup
COPY --chown=reader . .
CMD ["make", "book"]
