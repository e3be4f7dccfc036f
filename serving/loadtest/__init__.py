"""Load generator with closed loops, scheduled open loops and a search for the highest rate, and its statistics.

config                       amount, kind and duration of the load
generator.arrivals           schedules of open loops
generator.synthetic_rows     rows generated from the known values of columns
generator.payloads           rows → serialized requests, before the run
generator.transport          unary gRPC calls as bytes: `http2`, our own, or `grpcio`; `connections` opens them
generator.sender             one client process: sends, waits, counts
generator.worker_pool        several client processes
stats.counters               counts in slices of a run; `histogram` holds latencies
stats.stability              whether a run is stable
stats.percentiles            figures with confidence intervals, or the reason why there are none
stats.metrics                the metrics of a run, one line each
runs                         a load with its slices, and whether the client was the bottleneck
analysis.score_check         comparison of scores under load with the expected scores
analysis.server_breakdown    time per step, from Triton's statistics; `resources`: CPU and memory of the server
analysis.identity            a model that returns its input
analysis.compare             comparison of two reports
measurement                  one load from beginning to end
search.rate                  the highest rate that passes a test; `slo`: that meets a latency target
runner                       all configured loads in sequence
report.report                the results as numbers
report.plot, report.html     charts and a page; `markup` creates its elements
summary                      table and sentences for the page, the terminal and the container
"""
