// Package lines is the protocol between a test and a client program: one JSON request per line, one JSON answer each.
package lines

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// Deadline bounds every request: waiting for a message that does not come is an error.
const Deadline = 30 * time.Second

// Header is one header of a record; a nil value is null.
type Header struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

// Message is a record to send, or one that was read. Bytes are base64, null where nil.
type Message struct {
	Partition *int32   `json:"partition"` // nil: the client's own choice by key
	Offset    int64    `json:"offset"`
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []Header `json:"headers"`
	Timestamp *int64   `json:"timestamp"` // milliseconds; nil: the client's clock
}

// Request has the fields of all requests; `do` names the request, and each uses those it needs.
type Request struct {
	Do           string            `json:"do"`
	Topic        string            `json:"topic"`
	To           string            `json:"to"`
	Group        string            `json:"group"`
	Instance     string            `json:"instance"`
	Protocol     string            `json:"protocol"`
	ID           string            `json:"id"` // transactional id
	End          string            `json:"end"`
	Codec        string            `json:"codec"`
	Acks         string            `json:"acks"`
	Idempotent   bool              `json:"idempotent"`
	Keep         bool              `json:"keep"` // one producer for all requests that say so
	Committed    bool              `json:"committed"`
	ValidateOnly bool              `json:"validate_only"`
	Messages     []Message         `json:"messages"`
	Counts       map[int32]int     `json:"counts"`
	Count        int               `json:"count"`
	Partitions   int32             `json:"partitions"`
	Offset       int64             `json:"offset"`
	Name         string            `json:"name"`
	Configs      map[string]string `json:"configs"`
}

// Total is the number of messages requested from all partitions.
func (request *Request) Total() int {
	total := 0
	for _, count := range request.Counts {
		total += count
	}
	return total
}

// BatchBytes is the largest batch: below the limit of topics with large messages; for the producer that is kept, so
// small that a send is many batches and a kill hits it in the middle.
func (request *Request) BatchBytes() int {
	if request.Keep {
		return 4_000
	}
	return 6_000_000
}

// Member is the state of a group member.
type Member struct {
	Owned      []int32    `json:"owned"`
	Rebalances int        `json:"rebalances"`
	Read       [][2]int64 `json:"read"` // partition, offset
	Errors     []string   `json:"errors"`
}

// Group is a described group.
type Group struct {
	State   string `json:"state"`
	Members int    `json:"members"`
}

// Handler answers one kind of request.
type Handler func(request *Request) (any, error)

// Serve answers requests until the input ends.
func Serve(handlers map[string]Handler) {
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	output := json.NewEncoder(os.Stdout)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			return
		}
		var request Request
		answer := map[string]any{}
		if err := json.Unmarshal(line, &request); err != nil {
			answer["error"] = err.Error()
		} else if handler, known := handlers[request.Do]; !known {
			answer["error"] = fmt.Sprintf("unknown request %q", request.Do)
		} else if result, err := handler(&request); err != nil {
			answer["error"] = err.Error()
		} else {
			answer["result"] = result
		}
		if err := output.Encode(answer); err != nil {
			return
		}
	}
}
