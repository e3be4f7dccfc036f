#!/bin/sh
# Has the images that the stack is built on: pulled, or, where the registry cannot be reached, laid out from packages under
# the same names. Says which; scripts/base-images.Dockerfile says how a stand-in differs. What has none is left out.
# Usage: scripts/container-engine.sh scripts/base-images.sh
set -eu
cd "$(dirname "$0")/.."
stand_ins=scripts/base-images.Dockerfile
pytriton=$(sed -n 's/^\(nvidia-pytriton==[^ ]*\).*/\1/p' constraints.txt)
images=$(sed -n 's/^ARG .*_IMAGE=//p' serving/deploy/Dockerfile &&
    sed -n 's/^ *image: //p' docker-compose.yml | grep -v '^rankline-' | sort -u)

for image in $images; do
    target=${image%%:*} target=${target##*/}
    hash=$(docker image inspect --format '{{index .Config.Labels "rankline.stand-in"}}' "$image" 2>/dev/null) || hash=absent
    [ -n "$hash" ] || continue # it is the true one
    if [ "$hash" = absent ] && docker pull --quiet "$image" >/dev/null 2>&1; then
        continue
    fi
    if ! grep -q " AS $target$" "$stand_ins"; then
        echo "base-images: $image cannot be pulled and has no stand-in" >&2
        continue
    fi
    tree=$(scripts/debian-tree.sh trixie)
    debian=rankline-stand-in:${tree##*/}
    wanted=$({ echo "$debian $pytriton" && cat "$stand_ins"; } | sha256sum | cut -c 1-16)
    [ "$hash" != "$wanted" ] || continue
    echo "base-images: $image cannot be pulled; building a stand-in from packages" >&2
    docker image inspect "$debian" >/dev/null 2>&1 || tar --create --directory "$tree" . | docker import - "$debian" >/dev/null
    docker build --quiet --target "$target" --tag "$image" --label "rankline.stand-in=$wanted" \
        --build-arg "DEBIAN=$debian" --build-arg "PYTRITON=$pytriton" - <"$stand_ins" >/dev/null
done
