# Print "SHA256 SIZE PATH" for each file of a version, from its manifest.json as `rankline export` writes it. Any other
# layout and any path that the server does not need is an error, so that nothing unknown is copied.
#
#     awk -v name=NAME -v version=N -f manifest.awk manifest.json

function refuse() { status = 1; exit }

# Whether a path is of a step of this version, or the ensemble's own config.
function is_known(path,    parts, count, i, kind) {
    if (path !~ /^[A-Za-z0-9_.\/ -]+$/) return 0
    count = split(path, parts, "/")
    for (i = 1; i <= count; i++) if (parts[i] == "" || parts[i] == "." || parts[i] == "..") return 0
    if (path == name "/" version "/config.pbtxt") return 1
    kind = substr(parts[1], length(name) + 2)
    if (parts[1] != name "_" kind || kind !~ /^(score|transform|predict)_v[0-9]+$/) return 0
    if (substr(kind, index(kind, "_v") + 2) != version) return 0
    if (count == 2) return parts[2] == "config.pbtxt"
    if (parts[2] != "1") return 0
    if (parts[3] == "model.savedmodel") return count > 3
    return (parts[3] == "plan" && count == 4) || (parts[3] == "model.onnx" && count == 3)
}

# The value of a line `      "KEY": VALUE,`.
function value_of(key,    prefix) {
    prefix = "      \"" key "\": "
    if ((getline) <= 0 || substr($0, 1, length(prefix)) != prefix) refuse()
    return substr($0, length(prefix) + 1)
}

/^  "format_version": / { if ($0 != "  \"format_version\": 1,") refuse() }
/^  "files": / { if ($0 != "  \"files\": {" || is_inside || is_over) refuse(); is_inside = 1; next }
is_inside && $0 == "  }" { is_inside = 0; is_over = 1; next }
is_inside {
    if ($0 !~ /^    "[^"\\]+": \{$/) refuse()
    path = substr($0, 6, length($0) - 9)
    sum = value_of("sha256")
    size = value_of("num_bytes")
    if (sum !~ /^"[0-9a-f]+",$/ || length(sum) != 67 || size !~ /^(0|[1-9][0-9]*)$/ || length(size) > 13) refuse()
    if (path ~ /\/config\.pbtxt$/ && size + 0 > 1048576) refuse()
    if ((getline) <= 0 || $0 !~ /^    },?$/ || path in seen || !is_known(path)) refuse()
    seen[path] = 1
    print substr(sum, 2, 64), size, path
}
END { exit status || !is_over }
