#!/usr/bin/env bash
# Builds the image of the current commit, without pulling any: Debian packages and hashed wheels, without a shell.
#
#   deploy/image/build.sh [FOLDER]               default: build/image, which gets image.oci.tar, sbom.cdx.json and digest
#   deploy/image/build.sh FOLDER sandboxes       with bubblewrap, git, a shell and the interpreter of programs
#
# Needs Debian 12, root, and: apt-get install mmdebstrap buildah binutils python3-venv git
# Two builds of one commit have one digest. What is not committed is not in the image.
set -euo pipefail
umask 022
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source="$(cd "$here/../.." && pwd)"
mkdir -p "${1:-$source/build/image}"
out="$(cd "${1:-$source/build/image}" && pwd)"
variant="${2:-}"
[ -z "$variant" ] || [ "$variant" = sandboxes ] || { echo "build.sh: there is no variant $variant" >&2; exit 2; }
work="$(mktemp -d)"
container=""
trap '[ -z "$container" ] || buildah rm "$container" >/dev/null; rm -rf "$work"' EXIT

commit="$(git -C "$source" rev-parse HEAD)"
SOURCE_DATE_EPOCH="$(git -C "$source" log -1 --format=%ct)"
# Sets in constants are written to bytecode in the order of their hashes.
export SOURCE_DATE_EPOCH PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 LC_ALL=C
mkdir "$work/source"
git -C "$source" archive "$commit" | tar -x -C "$work/source"
image="$work/source/deploy/image"
version="$(sed -n 's/^version = "\(.*\)"/\1/p' "$work/source/pyproject.toml" | head -1)"

name="localhost/deputize:$version${variant:+-$variant}"

echo "==> Debian packages"
debian="$work/debian"
pins="$(cat "$image"/packages{,${variant:+-$variant}}.txt | grep -v '^#' | sort -u | paste -sd,)"
mmdebstrap --quiet --variant=extract --include="$pins" \
  --extract-hook='mkdir "$1/status.d" && for deb in "$1"/var/cache/apt/archives/*.deb; do
    dpkg-deb --field "$deb" > "$1/status.d/$(dpkg-deb --field "$deb" Package)"; done' \
  bookworm "$debian" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} ||
  { echo "build.sh: if Debian has replaced a pinned package, run deploy/image/lock.py and commit" >&2; exit 1; }

echo "==> root folder"
# Only what is named here: no shell, no package manager, no other program than Python.
root="$work/root"
mkdir -p "$root"/{dev,proc,sys,tmp,run,srv/deputize,etc/ssl/certs,usr/bin,usr/share/doc,usr/local/bin,var/lib/dpkg}
cp -a "$debian"/lib "$debian"/lib64 "$root/"
cp -a "$debian/usr/lib" "$root/usr/"
cp -a "$debian/usr/bin/python3.11" "$root/usr/bin/"
if [ -n "$variant" ]; then
  # What programs in sandboxes, their copies of folders and git need; nothing that installs packages.
  cp -a "$debian"/usr/bin/. "$root/usr/bin/"
  [ -L "$debian/bin" ] || cp -a "$debian"/bin/. "$root/usr/bin/"
  rm -f "$root"/usr/bin/{apt*,deb*,dpkg*,perl*,update-alternatives,c_rehash,openssl}
  grep -lIr '^#!.*perl' "$root/usr/bin" | xargs rm -f
  mkdir -p "$root/usr/share"
  cp -a "$debian/usr/share/git-core" "$root/usr/share/"
  ln -sfn dash "$root/usr/bin/sh"
  ln -sfn usr/bin "$root/bin"
fi
cp -a "$debian"/etc/{mime.types,protocols,rpc,services} "$root/etc/"
cp -a "$debian/status.d" "$root/var/lib/dpkg/status.d" # where scanners look for packages
for copyright in "$debian"/usr/share/doc/*/copyright; do
  install -D -m 644 "$copyright" "$root/usr/share/doc/$(basename "$(dirname "$copyright")")/copyright"
done
find "$debian/usr/share/ca-certificates" -name '*.crt' | sort | xargs cat > "$root/etc/ssl/certs/ca-certificates.crt"
rm -rf "$root"/usr/lib/{dpkg,ssl/misc} "$root"/usr/lib/*-linux-gnu/{gconv,perl-base} "$root"/usr/lib/python3.11/{lib2to3,pydoc_data,idlelib}
cat > "$root/etc/os-release" <<'EOF'
PRETTY_NAME="Deputize on Debian GNU/Linux 12 (bookworm)"
ID=debian
VERSION_ID="12"
VERSION_CODENAME=bookworm
EOF
echo 'deputize:x:65532:65532::/srv/deputize:/usr/sbin/nologin' > "$root/etc/passwd"
echo 'deputize:x:65532:' > "$root/etc/group"
printf 'hosts: files dns\n' > "$root/etc/nsswitch.conf"

echo "==> wheels"
/usr/bin/python3.11 -m venv "$work/venv"
pip=("$work/venv/bin/pip" --quiet --disable-pip-version-check)
"${pip[@]}" install --constraint "$work/source/constraints.txt" pip hatchling
(cd "$work/source" && "$work/venv/bin/python" -m hatchling build -t wheel -d "$work/wheel" >/dev/null 2>&1)
packages="$root/usr/local/lib/python3.11/dist-packages"
target=(install --no-deps --no-compile --only-binary :all: --target "$packages")
cat "$image"/requirements{,${variant:+-$variant}}.txt | sort -u > "$work/requirements.txt"
"${pip[@]}" "${target[@]}" --require-hashes --requirement "$work/requirements.txt"
"${pip[@]}" "${target[@]}" "$work"/wheel/*.whl
[ -z "$variant" ] || mv "$packages/bin/monty" "$root/usr/local/bin/"
# Where this machine had them from, programs that start another Python, and what is compiled or only tests.
rm -rf "$packages"/*.dist-info/direct_url.json "$packages"/{bin,croniter/tests,greenlet/tests,sqlalchemy/testing}
find "$packages" -type f \( -name '*.c' -o -name '*.cpp' -o -name '*.h' -o -name '*.pxd' -o -name '*.pyi' -o -name '*.pyx' \) -delete
# These wheels come with what debuggers need, which is most of them.
find "$packages"/{asyncpg,pgparse*,uvloop,yaml} -name '*.so' -exec strip --strip-debug {} +
printf '#!/usr/bin/python3.11 -P\nfrom deputize.__main__ import main\n\nmain()\n' > "$root/usr/local/bin/deputize"
chmod 755 "$root/usr/local/bin/deputize"
sed -i '\#^\(\.\./\)*bin/#d; /direct_url\.json/d' "$packages"/*.dist-info/RECORD
# Nothing can be written at run time, and the files never change. From inside: a random path here changes the bytecode.
(cd "$root" && /usr/bin/python3.11 -m compileall -q -f --invalidation-mode unchecked-hash -p / -x '/pygments/' \
  usr/lib/python3.11 usr/local/lib/python3.11 >/dev/null) || true # templates in packages are not valid Python

echo "==> SBOM"
mkdir -p "$root/usr/share/deputize"
"$work/venv/bin/python" "$image/sbom.py" "$root" "$version" < "$work/requirements.txt" > "$out/sbom.cdx.json"
cp "$out/sbom.cdx.json" "$root/usr/share/deputize/"

echo "==> image"
find "$root" ! -type l -exec chmod go-w {} +
[ -z "$variant" ] || chmod 1777 "$root/tmp" # a file system that is mounted there can take its mode
tar --create --directory "$root" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
  --file "$work/root.tar" .
container="$(buildah from scratch 2>/dev/null)"
buildah add --quiet "$container" "$work/root.tar" / >/dev/null
buildah config --user 65532:65532 --workingdir /srv/deputize --entrypoint '["deputize"]' --cmd serve --port 7070 --port 7071 \
  --env PATH=/usr/local/bin:/usr/bin --env LANG=C.UTF-8 --env PYTHONUNBUFFERED=1 \
  --env SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt --stop-signal SIGTERM \
  --label org.opencontainers.image.title=Deputize --label org.opencontainers.image.licenses=Apache-2.0 \
  --label "org.opencontainers.image.version=$version" --label "org.opencontainers.image.revision=$commit" "$container"
buildah commit --quiet --format oci --timestamp "$SOURCE_DATE_EPOCH" "$container" "$name" >/dev/null
rm -f "$out/image.oci.tar"
buildah push --quiet --digestfile "$out/digest" "$name" "oci-archive:$out/image.oci.tar:${name#localhost/}"
printf '%s  %s  %d MB compressed\n' "$name" "$(cat "$out/digest")" "$(($(stat -c %s "$out/image.oci.tar") / 1000000))"
