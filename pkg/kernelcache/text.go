// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	sigsjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/pkg/jsonsize"
	"github.com/fettle-dev/fettle/pkg/message"
)

// MaxText bounds the length of foreign text: a label, the manifest, a JSON file or an index.
const MaxText = 4 << 20

// maxValues bounds the values of a JSON text and the strings of an index: a text of three bytes for each would take some hundred MiB. A
// manifest of MaxText has some 200,000.
const maxValues = 256 << 10

// ErrInvalid: a label or file does not have its format.
var ErrInvalid = errors.New("not valid")

// longestQuote bounds foreign text in messages.
const longestQuote = 120

// quote makes foreign text fit for a message and puts it into quotes.
func quote(text string) string {
	return `"` + strings.ReplaceAll(message.Line(text, longestQuote), `"`, "?") + `"`
}

// printable reports whether text of an image may be shown and kept as it is.
func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// decode reads foreign JSON into a struct or map. It ignores unknown keys, which other versions may have. A duplicate key is an error,
// since two readers could use different values.
func decode(data []byte, into any) error {
	if len(data) > MaxText {
		return fmt.Errorf("%w: %d bytes, want at most %d", ErrInvalid, len(data), MaxText)
	}
	if err := jsonsize.Check(data, maxValues); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	strict, err := sigsjson.UnmarshalStrict(data, into, sigsjson.DisallowDuplicateFields)
	if err == nil {
		err = errors.Join(strict...)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, plain(err))
	}
	return nil
}

// plain returns an error with the same chain and with its text, which has foreign words in it, cut to one bounded line.
func plain(err error) error {
	text := quote(strings.ReplaceAll(err.Error(), `"`, "'"))
	return &plainError{strings.Trim(text, `"`), err}
}

type plainError struct {
	text string
	err  error
}

func (e *plainError) Error() string { return e.text }

func (e *plainError) Unwrap() error { return e.err }

// encode writes JSON as Python does, with <, > and & unescaped, and without a newline at the end.
func encode(value any) ([]byte, error) {
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	return []byte(strings.TrimSuffix(out.String(), "\n")), nil
}

// jsonLength returns how many bytes a text has in JSON, without its quotes.
func jsonLength(text string) int {
	out, _ := encode(text) // Text is always JSON.
	return len(out) - len(`""`)
}
