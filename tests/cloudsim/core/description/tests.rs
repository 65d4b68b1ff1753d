//! A small description of our own, so that these need no file.

use http::Method;

use super::*;

const TEXT: &str = r##"
openapi: 3.1.0
paths:
  /v2/things:
    get:
      parameters:
        - {name: kind, in: query, schema: {type: string, enum: [a, b]}}
        - {name: ids, in: query, explode: false, schema: {type: array, items: {type: integer}}}
      responses: {"200": {content: {application/json: {schema: {type: array, items: {$ref: "#/components/schemas/Thing"}}}}}}
    post:
      requestBody: {required: true, content: {application/json: {schema: {$ref: "#/components/schemas/NewThing"}}}}
      responses: {"201": {description: made}}
  /v2/things/{id}:
    parameters: [{name: id, in: path, required: true, schema: {type: string, pattern: "^t-"}}]
    get: {responses: {"200": {description: found}}}
    put: {requestBody: {content: {text/plain: {schema: {type: string, maxLength: 9}}}}, responses: {"204": {description: set}}}
  /v2/things/trash:
    get: {responses: {"200": {description: found}}}
components:
  schemas:
    Base: {type: object, properties: {name: {type: string}, note: {type: string, nullable: true}}}
    Thing: {type: object, required: [id], properties: {id: {type: string}}}
    NewThing:
      allOf:
        - $ref: "#/components/schemas/Base"
        - {type: object, required: [size], properties: {size: {type: integer}, disk: {type: object, properties: {gb: {type: integer}}}, base: {nullable: true, allOf: [{$ref: "#/components/schemas/Base"}]}}}
"##;

fn wrong(method: Method, target: &str, body: &str) -> Vec<String> {
    let mut request = Request::new(method, target, body.to_owned());
    if !body.is_empty() {
        request
            .headers
            .insert("content-type", "application/json".parse().unwrap());
    }
    Description::parse(TEXT).unwrap().check(&request)
}

#[test]
fn what_is_described_is_allowed() {
    assert_eq!(
        wrong(Method::GET, "/v2/things?kind=a&ids=1,2", ""),
        Vec::<String>::new()
    );
    assert_eq!(
        wrong(
            Method::POST,
            "/v2/things",
            r#"{"name":"n","note":null,"size":1,"disk":{"gb":2}}"#
        ),
        Vec::<String>::new()
    );
    for base in ["null", r#"{"name":"n"}"#] {
        let body = format!(r#"{{"size":1,"base":{base}}}"#);
        assert_eq!(
            wrong(Method::POST, "/v2/things", &body),
            Vec::<String>::new(),
            "{base}"
        );
    }
    assert_eq!(wrong(Method::GET, "/v2/things/t-1", ""), Vec::<String>::new());
    assert_eq!(
        wrong(Method::GET, "/v2/things/trash", ""),
        Vec::<String>::new(),
        "the path without holes wins"
    );
}

#[test]
fn a_property_that_no_part_of_a_schema_names_is_found_at_any_depth() {
    assert!(wrong(Method::POST, "/v2/things", r#"{"size":1,"colour":"red"}"#)[0].contains("colour"));
    assert!(
        wrong(
            Method::POST,
            "/v2/things",
            r#"{"size":1,"disk":{"gb":2,"kind":"ssd"}}"#
        )[0]
        .contains("kind")
    );
    assert!(wrong(Method::POST, "/v2/things", r#"{"name":"n"}"#)[0].contains("size"));
    let of_base = wrong(Method::POST, "/v2/things", r#"{"size":1,"base":{"a":1}}"#);
    assert!(!of_base.is_empty());
}

#[test]
fn parameters_are_checked_and_unknown_ones_are_found() {
    assert!(wrong(Method::GET, "/v2/things?kind=c", "")[0].contains("kind"));
    assert!(wrong(Method::GET, "/v2/things?ids=1,x", "")[0].contains("ids"));
    assert!(wrong(Method::GET, "/v2/things?page=2", "")[0].contains("page"));
    assert!(wrong(Method::GET, "/v2/things/x-1", "")[0].contains("id"));
}

#[test]
fn what_has_no_description_and_bodies_of_another_type_are_found() {
    assert!(wrong(Method::DELETE, "/v2/things", "")[0].contains("has no DELETE"));
    assert!(wrong(Method::GET, "/v3/things", "")[0].contains("has no GET"));
    assert!(wrong(Method::POST, "/v2/things", "")[0].contains("needs a body"));
    assert!(wrong(Method::GET, "/v2/things", r#"{"a":1}"#)[0].contains("no body"));
    let form = Request::new(Method::POST, "/v2/things", "size=1");
    assert!(Description::parse(TEXT).unwrap().check(&form)[0].contains("content type"));
}

#[test]
fn a_body_that_is_text_need_not_be_json() {
    for (text, allowed) in [("#!/bin/sh", true), ("#!/bin/bash", false)] {
        let mut request = Request::new(Method::PUT, "/v2/things/t-1", text);
        let headers = &mut request.headers;
        headers.insert("content-type", "text/plain; charset=utf-8".parse().unwrap());
        let wrong = Description::parse(TEXT).unwrap().check(&request);
        assert_eq!(wrong.is_empty(), allowed, "{wrong:?}");
    }
}

#[test]
fn what_the_address_of_the_server_says_of_the_path_stands_before_all_paths() {
    let text = format!(
        "servers: [{{url: \"https://api.example.com/v9/\"}}]\n{}",
        TEXT.trim_start()
    );
    let description = Description::parse(&text).unwrap();
    let wrong = |path: &str| description.check(&Request::new(Method::GET, path, ""));
    assert_eq!(wrong("/v9/v2/things"), Vec::<String>::new());
    assert!(wrong("/v2/things")[0].contains("has no GET"));
}

#[test]
fn answers_may_have_more_than_is_described_but_not_other_things() {
    let description = Description::parse(TEXT).unwrap();
    let request = Request::new(Method::GET, "/v2/things", "");
    let wrong = |answer: &Answer| description.check_answer(&request, answer).len();
    assert_eq!(
        wrong(&Answer::json(200, &json!([{"id": "t-1", "more": true}]))),
        0
    );
    assert_eq!(wrong(&Answer::json(200, &json!([{"id": 1}]))), 1);
    assert_eq!(wrong(&Answer::json(418, &json!({}))), 1);
    assert_eq!(wrong(&Answer::json(502, &json!({}))), 0);
}
