-- The health scripts of config/argocd, each on objects as the controller writes them. Argo CD
-- runs a script with the object in the global `obj` and takes what it returns.
--
--   lua5.4 tests/chart/health.lua        (from the root of the repository)

local now = { type = "Ready", status = "True", message = "all is well" }
local not_yet = { type = "Ready", status = "False", message = "2 of 3 machines are ready" }
local stalled = { type = "Stalled", status = "True", message = "no Offer fits" }
local not_stalled = { type = "Stalled", status = "False", message = "" }

local function object(status, generation)
  return { metadata = { generation = generation or 1 }, status = status }
end

-- kind, object, status, what the message says
local cases = {}
for _, kind in ipairs({ "pool", "machine", "crontask", "provider" }) do
  table.insert(cases, { kind, object(nil), "Progressing", "not looked at it yet" })
  table.insert(cases, { kind, object({}), "Progressing", "not looked at it yet" })
  table.insert(cases, { kind, object({ observedGeneration = 1, conditions = { now } }, 2), "Progressing", "last change" })
  table.insert(cases, { kind, object({ observedGeneration = 1, conditions = { not_stalled, not_yet } }), "Progressing", "2 of 3" })
  table.insert(cases, { kind, object({ observedGeneration = 1, conditions = { not_yet, stalled } }), "Degraded", "no Offer fits" })
  table.insert(cases, { kind, object({ observedGeneration = 1, conditions = { now, not_stalled } }), "Healthy", "all is well" })
end
for _, phase in ipairs({ "Off", "Suspended" }) do
  table.insert(cases, { "pool", object({ phase = phase, observedGeneration = 1, conditions = { not_yet } }), "Suspended", "on purpose" })
end
table.insert(cases, { "crontask", object({ reason = "Suspended", observedGeneration = 1, conditions = { now } }), "Suspended", "on purpose" })
for _, case in ipairs({
  { "Scheduled", "Progressing" },
  { "Running", "Progressing" },
  { "Complete", "Healthy" },
  { "Failed", "Degraded" },
  { "Suspended", "Suspended" },
}) do
  local conditions = { { type = case[1], status = "True", message = "words" } }
  table.insert(cases, { "task", object({ conditions = conditions }), case[2], "words" })
end
table.insert(cases, { "task", object(nil), "Progressing", "not looked at it yet" })
-- Suspended once, and resumed.
local resumed = {
  { type = "Suspended", status = "False", message = "resumed" },
  { type = "Complete", status = "True", message = "exit code 0" },
}
table.insert(cases, { "task", object({ conditions = resumed }), "Healthy", "exit code 0" })

local failed = 0
local used = {}
for number, case in ipairs(cases) do
  local kind, given, status, words = table.unpack(case)
  used[kind] = true
  -- Nothing but what Argo CD's sandbox has.
  local script = assert(loadfile("config/argocd/" .. kind .. ".lua", "t", { obj = given, ipairs = ipairs, pairs = pairs }))
  local health = script()
  if health.status ~= status or not string.find(health.message or "", words, 1, true) then
    io.stderr:write(string.format(
      "FAILED  case %d: a %s is %s (%s), and should be %s (%s)\n",
      number, kind, tostring(health.status), tostring(health.message), status, words))
    failed = failed + 1
  end
end
if failed > 0 then os.exit(1) end
