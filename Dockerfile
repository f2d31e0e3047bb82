# An image that starts at once: kernels are compiled while it is built. Where it runs it needs no compiler and no network.
#
#   docker build -t hcm-scale .                                            CPU: torch's CPU build, or the build fails
#   docker build -t hcm-scale:cuda --build-arg BASE=pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime \
#                                  --build-arg TORCH= .                    CUDA: torch is the base image's
#   docker run --rm -v "$PWD:/work" hcm-scale run edges.csv nodes.csv
ARG BASE=python:3.12-slim
FROM ${BASE}
ARG TORCH="torch==2.13.0+cpu"
# where pip finds the CPU build: on x86_64 PyPI has the one for CUDA alone
ARG TORCH_FROM="--extra-index-url https://download.pytorch.org/whl/cpu"
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY pyproject.toml hatch_build.py README.md LICENSE /src/
COPY hcm_scale /src/hcm_scale
COPY conf /src/conf
RUN if [ -n "$TORCH" ]; then \
        pip install "$TORCH" $TORCH_FROM && python -c "import torch; assert torch.version.cuda is None"; fi \
    && pip install /src \
    && rm -rf /src \
    && hcm-scale warm
RUN useradd --create-home user
USER user
WORKDIR /work
ENTRYPOINT ["hcm-scale"]
CMD ["--help"]
