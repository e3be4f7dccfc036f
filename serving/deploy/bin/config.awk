# Print a config.pbtxt again, field by field, from what `rankline export` writes: one field or brace a line. Any other
# field, and any parameter that our backends do not read, is an error: Triton would load libraries that a `runtime` or a
# parameter such as TRITON_BATCH_STRATEGY_PATH names.
#
#     awk -v manifest=NAME/N/manifest.json -f config.awk config.pbtxt

function refuse() { status = 1; exit }

function allow(block, names,    list, count, i) {
    count = split(names, list, " ")
    for (i = 1; i <= count; i++) known[block list[i]] = 1
}

BEGIN {
    number = "-?[0-9]+"
    quoted = "\"([^\"\\\\]|\\\\.)*\""
    word = "[A-Z][A-Z0-9_]*|true|false"
    allow("", "name platform backend max_batch_size version_policy input output ensemble_scheduling instance_group")
    allow("", "dynamic_batching parameters")
    allow("version_policy.", "specific")
    allow("version_policy.specific.", "versions")
    allow("input.", "name data_type dims optional allow_ragged_batch")
    allow("output.", "name data_type dims")
    allow("ensemble_scheduling.", "step")
    allow("ensemble_scheduling.step.", "model_name model_version input_map output_map")
    allow("ensemble_scheduling.step.input_map.", "key value")
    allow("ensemble_scheduling.step.output_map.", "key value")
    allow("instance_group.", "count kind")
    allow("dynamic_batching.", "max_queue_delay_microseconds default_queue_policy")
    allow("dynamic_batching.default_queue_policy.", "max_queue_size default_timeout_microseconds")
    allow("parameters.", "key value")
    allow("parameters.value.", "string_value")
    count = split("MANIFEST CANDIDATES MAX_LIST_LENGTH CLASSES TF_GRAPH_TAG TF_SIGNATURE_DEF INTRA_OP_THREADS " \
        "INTER_OP_THREADS intra_op_thread_count inter_op_thread_count execution_mode", list, " ")
    for (i = 1; i <= count; i++) parameters["\"" list[i] "\""] = 1
}

{
    match($0, /^ */)
    indent = substr($0, 1, RLENGTH)
    text = substr($0, RLENGTH + 1)
}
text == "}" {
    if (block !~ /\.$/) refuse()
    sub(/[a-z_]+\.$/, "", block)
    print indent "}"
    next
}
text ~ /^[a-z_]+ \{$/ {
    field = substr(text, 1, length(text) - 2)
    if (!((block field) in known)) refuse()
    block = block field "."
    if (block == "parameters.") key = ""
    print indent field " {"
    next
}
text ~ ("^[a-z_]+: (" number "|" quoted "|" word ")$") {
    field = substr(text, 1, index(text, ":") - 1)
    value = substr(text, index(text, ":") + 2)
    if (!((block field) in known)) refuse()
    if (block field == "parameters.key" && !((key = value) in parameters)) refuse()
    if (block field == "parameters.value.string_value") { # whose key comes first
        if (key == "") refuse()
        if (key == "\"MANIFEST\"" && value != "\"" manifest "\"") refuse()
        if (tolower(key) ~ /thread/ && value !~ /^"-?[0-9][0-9]?[0-9]?"$/) refuse()
    }
    if (block field == "instance_group.count" && value !~ /^[1-9][0-9]?[0-9]?$/) refuse()
    if (block field == "backend" && value !~ /^"(nvtabular|tensorflow|onnxruntime)"$/) refuse()
    print indent field ": " value
    next
}
{ refuse() }
END { exit status || block != "" }
