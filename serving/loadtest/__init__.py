"""The load generator: closed loops, open loops from a schedule, a search for the highest rate, and their statistics.

config       how much load, of which kind, for how long
arrivals     when requests of an open loop are due
inputs       rows generated from the known values of columns
requests     rows → serialised requests, before the run
transport    unary gRPC calls as bytes: `http2`, our own, or `grpcio`; `connections` opens them
engine       one process: sends, waits, counts
workers      several of them
records      their counts in slices of the run; `histogram` holds latencies
runs         a load with its slices, and whether the client was the bottleneck
windows      whether a run is stable
percentiles  figures with confidence intervals, or the reason for none
metrics      the metrics of a run, one line each
checks       scores under load against the expected ones
breakdown    where the time goes, from Triton's statistics; `resources`: CPU and memory of the server's processes
identity     a model that returns its input
measurement  one load from beginning to end
search       the highest rate that holds a bound; `slo`: that meets a latency target
load         all configured loads, one after another
report       the results as numbers; `compare`: two reports
summary      the table and sentences for the page, the terminal and the container
plot, html   charts and a page; `markup` makes its elements
"""
