# Stand-ins of the images that the stack is built on, from Debian's packages and PyPI; scripts/base-images.sh builds them.
ARG DEBIAN

# Debian's own Python, of the same minor version, with packages where the official image has them.
FROM ${DEBIAN} AS python
RUN apt-get update && apt-get install --yes --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /usr/local
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin

# Triton 24.10 as the wheel nvidia-pytriton has it: no CUDA, none of NVIDIA's backends.
FROM python AS tritonserver
ARG PYTRITON
RUN pip install --no-cache-dir --no-deps --no-compile --target /wheel "$PYTRITON" \
    && mkdir /opt/tritonserver && mv /wheel/pytriton/tritonserver/bin /opt/tritonserver/bin \
    && mv /wheel/nvidia_pytriton.libs /opt/tritonserver/lib && rm -r /wheel \
    && echo /opt/tritonserver/lib > /etc/ld.so.conf.d/tritonserver.conf && ldconfig
ENV PATH=/opt/tritonserver/bin:$PATH

# Debian testing, whose packages are newer.
FROM ${DEBIAN} AS testing
RUN sed -i 's/\btrixie\b/testing/' $(find /etc/apt -name '*.list' -o -name '*.sources') && apt-get update

# PostgreSQL's own release; its user, directories and first start are those of the official image.
FROM testing AS postgres
RUN groupadd --gid 999 postgres && useradd --uid 999 --gid 999 --home-dir /var/lib/postgresql postgres \
    && apt-get install --yes --no-install-recommends postgresql-18 && rm -rf /var/lib/apt/lists/* /var/lib/postgresql \
    && install --directory --owner postgres --group postgres --mode 1777 /var/lib/postgresql /var/run/postgresql
COPY <<'ENTRY' /usr/local/bin/docker-entrypoint.sh
#!/bin/sh
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    install --directory --mode 700 "$PGDATA"
    echo "$POSTGRES_PASSWORD" | initdb --username="$POSTGRES_USER" --pwfile=/dev/stdin $POSTGRES_INITDB_ARGS
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
    echo "CREATE DATABASE $POSTGRES_DB;" | postgres --single -j postgres
fi
exec "$@"
ENTRY
RUN chmod +x /usr/local/bin/docker-entrypoint.sh
ENV PATH=/usr/lib/postgresql/18/bin:/usr/local/bin:/usr/bin:/bin PGDATA=/var/lib/postgresql/18/docker
VOLUME /var/lib/postgresql
STOPSIGNAL SIGINT
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]

# Some minor releases older.
FROM testing AS prometheus
RUN apt-get install --yes --no-install-recommends prometheus wget && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner nobody --group nogroup /prometheus
USER nobody
VOLUME /prometheus
ENTRYPOINT ["prometheus"]
