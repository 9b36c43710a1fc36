# docker build -t lrp-book . && docker run --rm -v "$PWD/out:/book/_build" lrp-book
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends git make && rm -rf /var/lib/apt/lists/*
WORKDIR /book
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu PIP_NO_CACHE_DIR=1
COPY requirements.txt pyproject.toml README.md LICENSE Makefile ./
COPY lrputils lrputils
RUN make setup
COPY . .
CMD ["make", "book"]
