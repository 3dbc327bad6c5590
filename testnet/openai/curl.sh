#!/usr/bin/env bash
# Asks a head's API with curl, as a person would: curl.sh http://127.0.0.1:8080/v1 [MODEL]
# Prints each check; the exit code is 1 if one fails. Needs curl and a head that is ready (meshnet serve).
set -euo pipefail
url=${1:?usage: curl.sh http://HOST:PORT/v1 [MODEL]}
model=${2:-smollm2}
base=${url%/v1}
failed=0

# check NAME WANT GOT: WANT is a part of GOT.
check() {
  if [[ $3 == *"$2"* ]]; then
    echo "ok    $1"
  else
    printf 'FAIL  %s: no %q in:\n%s\n' "$1" "$2" "$3"
    failed=1
  fi
}
ask() { curl -sS --max-time 60 "$@"; }
post() { ask "$url/$1" -H 'Content-Type: application/json' -d "$2" "${@:3}"; }

question='"model":"'$model'","messages":[{"role":"user","content":"Say hello."}],"max_tokens":8,"temperature":0'

check 'the process is there' ok "$(ask "$base/healthz")"
check 'a forward went through the route' ready "$(ask "$base/readyz")"
check 'the model is listed' "\"id\":\"$model\"" "$(ask "$url/models")"
check 'an answer' '"object":"chat.completion"' "$(post chat/completions "{$question}")"
check 'it names its session' 'X-Meshnet-Session: ' "$(post chat/completions "{$question}" -D - -o /dev/null)"

streamed=$(post chat/completions "{$question,\"stream\":true,\"stream_options\":{\"include_usage\":true}}" -N)
check 'a stream has pieces' '"object":"chat.completion.chunk"' "$streamed"
check 'a stream has usage' '"total_tokens":' "$streamed"
check 'a stream ends' 'data: [DONE]' "$streamed"

check 'text completion' '"object":"text_completion"' "$(post completions "{\"model\":\"$model\",\"prompt\":\"Once upon a\",\"max_tokens\":4}")"
check 'an unknown model' '"code":"model_not_found"' "$(post chat/completions '{"model":"nope","messages":[{"role":"user","content":"x"}]}')"
check 'broken JSON' '"type":"invalid_request_error"' "$(post chat/completions '{"messages":[')"
check 'broken UTF-8' 'not valid UTF-8' "$(post chat/completions $'{"messages":[{"role":"user","content":"\xff"}]}')"
check 'a web page of somebody else' '"code":"origin_not_allowed"' "$(post chat/completions "{$question}" -H 'Origin: https://evil.example')"
check 'a rebound name' '"code":"host_not_allowed"' "$(ask "$url/models" -H 'Host: evil.example')"
check 'no such path' '"code":"unknown_url"' "$(ask "$base/v2")"
check 'status' '"peers":' "$(ask "$base/status")"
check 'metrics' 'meshnet_api_requests_total' "$(ask "$base/metrics")"
exit $failed
