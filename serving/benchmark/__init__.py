"""The load generator: closed loops, open loops from a schedule, a search for the highest rate, and their statistics.

config       how much load, of which kind, for how long
arrivals     when requests of an open loop are due
inputs       rows made up from the values that columns are known to have
requests     rows → serialised requests, before the run
transport    unary gRPC calls as bytes: `http2`, our own, or `grpcio`
engine       one process: sends, waits, counts
workers      several of them
records      what they count, in slices of the run; `histogram` holds latencies, `runs` puts slices and load together
windows      whether a run has settled
percentiles  figures with confidence intervals, or the reason why not
metrics      what is measured of a run: a line for each, by which all that follows goes
checks       scores under load against the expected ones
breakdown    where the time goes, from Triton's statistics; `resources`: what the server's processes use
selfcheck    whether the client was what was measured; `identity`: a model that does nothing
measurement  one load from beginning to end
search       the highest rate that holds a bound
load         everything that was asked for, one after another
report       what came of it, as numbers; `compare`: two of them
table, words what the page, the terminal and a container show and say alike
plot, html   as a picture and as a page; `markup` makes its elements
"""
