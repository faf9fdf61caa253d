# One broker, over TLS and logins. Nothing secret is in here and nothing secret belongs in an image: credentials come by
# the usual chain (a role, or AWS_… variables given to `docker run`). Data lies in the volume; the bucket is named on the command line.
# The official Python image is configured with --enable-optimizations and --with-lto; a plain build takes more CPU
# (docs/operations.md, Sizing).
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml setup.py requirements.lock README.md LICENSE ./
COPY seams seams/
COPY logformat logformat/
COPY hotstore hotstore/
COPY coldstore coldstore/
COPY tiering tiering/
COPY broker broker/
COPY thermocline thermocline/
COPY pyspark_thermocline pyspark_thermocline/
# The pins of the lock file, without their hashes: pip takes hashes only where everything has one, and this tree has none.
RUN grep -v -e '--hash=' requirements.lock | sed 's/ \\$//' > pins.txt \
 && python -m venv /opt/thermocline \
 && /opt/thermocline/bin/pip install --no-cache-dir -c pins.txt .

FROM python:3.11-slim
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/thermocline thermocline
COPY --from=build /opt/thermocline /opt/thermocline
ENV PATH=/opt/thermocline/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /var/lib/thermocline
VOLUME /var/lib/thermocline
EXPOSE 9092 9644 10092
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import os, ssl, urllib.request; ca = '/var/lib/thermocline/data/security/ca.pem'; secured = os.path.exists(ca); urllib.request.urlopen('https://127.0.0.1:9644/readyz' if secured else 'http://127.0.0.1:9644/readyz', timeout=2, context=ssl.create_default_context(cafile=ca) if secured else None)"]
ENTRYPOINT ["thermocline"]
# The first start makes keys and the first user below the volume, and writes its password to data/admin.properties: docs/security.md.
CMD ["serve", "--secure", "--data-dir", "/var/lib/thermocline/data", "--listen", "0.0.0.0:9092", "--http", "0.0.0.0:9644"]
