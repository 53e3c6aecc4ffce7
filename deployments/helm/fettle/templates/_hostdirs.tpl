{{/*
The directory above a glob: everything before the first path element with a wildcard, or the parent of a path without one.
Renaming a directory aside, which is how it is emptied, writes to the directory above it.
*/}}
{{- define "fettle.globParent" -}}
{{- $parent := "" -}}
{{- $stopped := false -}}
{{- $parts := splitList "/" (trimSuffix "/" .) | rest -}}
{{- range initial $parts -}}
{{- if regexMatch "[*?\\[]" . -}}{{- $stopped = true -}}{{- end -}}
{{- if not $stopped -}}{{- $parent = printf "%s/%s" $parent . -}}{{- end -}}
{{- end -}}
{{- $parent -}}
{{- end }}

{{/* Host directories that are mounted read-write for hostDevices, as a sorted YAML list; empty if none. */}}
{{- define "fettle.hostDirectories" -}}
{{- $dirs := list -}}
{{- range .Values.hostDevices -}}
{{- range .directories -}}
{{- $dirs = append $dirs (include "fettle.globParent" .) -}}
{{- end -}}
{{- end -}}
{{- with $dirs | uniq | sortAlpha -}}
{{- toYaml . -}}
{{- end -}}
{{- end }}
