"""Load-test a server with closed loops, scheduled open loops or a search for the highest rate, and report statistics.

config                       amount, kind and duration of the load
generator.arrivals           schedules of open loops
generator.payloads           rows, drawn or generated → serialized requests, before the run
generator.transport          unary gRPC calls as bytes: `http2`, our own, or `grpcio`
generator.sender             one client process: sends, waits, counts
generator.worker_pool        several client processes
stats.counters               counts and latencies in slices of a run, and whether they are stable
stats.percentiles            figures with confidence intervals, or the reason why there are none
stats.metrics                the metrics of a run, one line each
runs                         a load with its slices, and whether the client was the bottleneck
server_breakdown             time per step, from Triton's statistics; CPU and memory of the server
identity                     a model that returns its input
measurement                  one load from beginning to end, with a comparison of its scores
rate                         the highest rate that meets a latency target
runner                       all configured loads in sequence
serving_config               the serving configuration with the highest rate
report.report                the results as numbers
report.plot, report.html     charts and a page
compare                      comparison of two reports
summary                      table and sentences for the page, the terminal and the container
"""
