# The command line on a CPU: docker build -t logosphere . && docker run --rm logosphere sample
# Runs and caches are kept in a volume: docker run --rm -v "$PWD":/work logosphere train --data my-text.txt

FROM python:3.11-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY logosphere logosphere
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.11-slim
COPY --from=wheel /dist /dist
COPY constraints.txt /dist/
# TORCH_INDEX names an index with CPU builds of torch, which are a tenth of the size of those with CUDA.
ARG TORCH_INDEX=""
RUN pip install --no-cache-dir --constraint /dist/constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch numpy \
    && pip install --no-cache-dir --constraint /dist/constraints.txt "$(echo /dist/logosphere-*.whl)[data,plot,web]" \
    && rm -r /dist \
    && useradd --create-home --uid 1000 logosphere \
    && install --directory --owner logosphere /work
USER logosphere
WORKDIR /work
ENTRYPOINT ["logosphere"]
CMD ["--help"]
