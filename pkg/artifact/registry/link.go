// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"fmt"
	"strings"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// webLink is one link of a Link header, by RFC 8288.
type webLink struct {
	target string
	// relations are in lower case. They are those of the first parameter rel: section 3.3 has readers ignore others.
	relations []string
}

const linkSpace = " \t"

// parseLinks reads a Link header, which may have several links: <URL>; NAME=VALUE; NAME="VALUE", <URL>. Commas and semicolons occur in URLs
// and in quoted values, too. Empty elements of the list are passed over.
func parseLinks(header string) (links []webLink, err error) {
	rest := strings.TrimLeft(header, linkSpace+",")
	for rest != "" {
		target, after, ok := strings.Cut(rest, ">")
		if !ok || target == "" || target[0] != '<' {
			return nil, invalidLink(header)
		}
		l := webLink{target: target[1:]}
		if rest, ok = l.parameters(after); !ok {
			return nil, invalidLink(header)
		}
		links = append(links, l)
		rest = strings.TrimLeft(rest, linkSpace+",")
	}
	return links, nil
}

func invalidLink(header string) error {
	return fmt.Errorf(`the link to more referrers is %w: %s: expected <URL>; rel="next"`, artifact.ErrInvalid, quote(header))
}

// parameters reads the parameters of one link, and returns what is behind the comma that ends them.
func (l *webLink) parameters(text string) (rest string, ok bool) {
	hasRelation := false
	for {
		text = strings.TrimLeft(text, linkSpace)
		switch {
		case text == "":
			return "", true
		case text[0] == ',':
			return text[1:], true
		case text[0] != ';':
			return "", false
		}
		text = strings.TrimLeft(text[1:], linkSpace)
		end := strings.IndexAny(text, "=;, \t")
		if end < 0 {
			end = len(text)
		}
		name, value := strings.ToLower(text[:end]), ""
		text = strings.TrimLeft(text[end:], linkSpace)
		if after, has := strings.CutPrefix(text, "="); has {
			if value, text, ok = linkValue(strings.TrimLeft(after, linkSpace)); !ok {
				return "", false
			}
		}
		if name == "rel" && !hasRelation {
			hasRelation, l.relations = true, strings.Fields(strings.ToLower(value))
		}
	}
}

// linkValue reads a value, quoted or not, and returns what follows it.
func linkValue(text string) (value, rest string, ok bool) {
	if !strings.HasPrefix(text, `"`) {
		end := strings.IndexAny(text, ";, \t")
		if end < 0 {
			end = len(text)
		}
		return text[:end], text[end:], end > 0
	}
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '"':
			return b.String(), text[i+1:], true
		case '\\':
			if i++; i == len(text) {
				return "", "", false
			}
		}
		b.WriteByte(text[i])
	}
	return "", "", false
}
