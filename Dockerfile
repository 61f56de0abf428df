# One image for the flow's driver and for Spark's master and workers: what runs a driver's Python
# functions must be the same Python with the same packages.
FROM python:3.11.13-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /meander
COPY requirements.txt .
RUN pip install --no-cache-dir --requirement requirements.txt

COPY pyproject.toml README.md LICENSE ./
COPY meander meander
COPY schemas schemas
COPY state state
COPY dataflow dataflow
COPY connectors connectors
COPY app app
RUN pip install --no-cache-dir --no-build-isolation --no-deps --editable . \
    && useradd --create-home meander
USER meander
ENV PYTHONUNBUFFERED=1 PYSPARK_PYTHON=/usr/local/bin/python3
CMD ["meander", "--help"]
