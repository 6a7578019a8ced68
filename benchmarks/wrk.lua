-- Sends requests that were encoded before the load, in turn. The one argument names their file (benchmarks/wrk.py):
-- a line with the length of each, followed by its bytes.
local requests, number = {}, 0

function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  local length = file:read("*l")
  while length do
    requests[#requests + 1] = file:read(tonumber(length))
    length = file:read("*l")
  end
  file:close()
end

function request()
  number = number % #requests + 1
  return requests[number]
end

function done(summary, latency, _)
  local failed = summary.errors
  io.write(string.format(
    'RESULT {"requests":%d,"seconds":%.6f,"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d,' ..
    '"p50_ms":%.4f,"p90_ms":%.4f,"p99_ms":%.4f,"mean_ms":%.4f,"max_ms":%.4f}\n',
    summary.requests, summary.duration / 1e6,
    failed.connect, failed.read, failed.write, failed.status, failed.timeout,
    latency:percentile(50) / 1e3, latency:percentile(90) / 1e3, latency:percentile(99) / 1e3,
    latency.mean / 1e3, latency.max / 1e3))
end
