# Copies to a folder all of Debian and Python that /opt/milkweed needs to run: the interpreter, its library, and what they
# and the packages link to. No shell, no apt. Records and licenses of Debian's packages lie where distroless images have
# them, so that scanners find both.
set -eu
small=$1
stdlib=$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
home=$(sed -n 's/^home = //p' /opt/milkweed/pyvenv.cfg)

mkdir -p "$small/dev" "$small/proc" "$small/sys" "$small/var/lib/dpkg/status.d"
mkdir -m 1777 "$small/tmp"

# What only builds, teaches, tests, shows windows or keeps databases.
cd "$stdlib"
rm -rf config-* curses dbm ensurepip idlelib lib2to3 pydoc_data sqlite3 test tkinter turtle.py turtledemo \
    lib-dynload/_curses* lib-dynload/_dbm* lib-dynload/_sqlite3* lib-dynload/_test* lib-dynload/nis* \
    lib-dynload/readline* lib-dynload/xx*
find . -xtype l -delete
python -m compileall -q "$stdlib"

linked=$({ find "$stdlib" /opt/milkweed -name '*.so*'; readlink -f /opt/milkweed/bin/python; } \
    | xargs ldd 2>/dev/null | sed -nE 's/^\t(.* => )?(\/[^ ]+) .*/\2/p' | grep -v '^/opt/' | sort -u)
cd /
cp --archive --parents "$stdlib" "$home"/python "$home"/python3 "$home"/python3.?? /usr/lib/locale/C.utf8 "$small"
cp --dereference --parents $linked /etc/group /etc/ld.so.cache /etc/nsswitch.conf \
    /etc/os-release /etc/passwd "$small"

# Debian knows a library by its path in /lib or in /usr/lib, which are one folder. Python may be none of its packages.
cd "$small"
find . -type f ! -name '*.pyc' -printf '/%P\n/usr/%P\n' | xargs dpkg-query --search 2>/dev/null \
    | sed -nE 's/^([a-z0-9.+-]+):.*/\1/p' | sort -u | while read -r package; do
    dpkg-query --status "$package" > "var/lib/dpkg/status.d/$package"
    cp --dereference --parents "/usr/share/doc/$package/copyright" .
done
